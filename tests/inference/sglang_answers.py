"""A request as SGLang samples it, and the answer to it as it goes over the wire."""

import time
from dataclasses import dataclass, field


@dataclass
class Run:
    """A request while it is sampled."""

    rid: str
    ids: list
    params: dict
    body: dict
    max_new: int
    started: float = field(default_factory=time.time)
    output: list = field(default_factory=list)
    entries: list = field(default_factory=list)
    tops: list = field(default_factory=list)
    meta: dict = field(default_factory=dict)
    is_aborted: bool = False

    def begin(self, inputs, num_cached, weight_version):
        """The prompt has been read: what all answers will say."""
        self.meta = {
            "id": self.rid,
            "finish_reason": None,
            "prompt_tokens": len(self.ids),
            "weight_version": weight_version,
            "num_retractions": 0,
        }
        if self.body.get("return_logprob"):
            self.meta |= {"input_token_logprobs": inputs[0], "output_token_logprobs": []}
            self.meta["output_token_logprobs_length"] = 0
            if self.body.get("top_logprobs_num"):
                self.meta |= {"input_top_logprobs": inputs[1], "output_top_logprobs": []}
        self.meta |= {
            "reasoning_tokens": 0,
            "completion_tokens": 0,
            "cached_tokens": num_cached,
            "cached_tokens_details": {"device": num_cached, "host": 0} if num_cached else None,
            "dp_rank": None,
        }

    def chunk(self, tokenizer, finish, *, is_first, only_new):
        """The answer so far, or only its last token."""
        text = tokenizer.decode(self.output, skip_special_tokens=True)
        if finish and isinstance(finish.get("matched"), str):
            text = text[: text.find(finish["matched"])]
        begin = len(self.output) - 1 if only_new else 0
        meta = {**self.meta, "finish_reason": finish, "completion_tokens": len(self.output)}
        if "output_token_logprobs" in meta:
            meta["output_token_logprobs"] = self.entries[begin:]
            meta["output_token_logprobs_length"] = len(self.entries[begin:])
        if "output_top_logprobs" in meta:
            meta["output_top_logprobs"] = self.tops[begin:]
        if finish:
            meta["e2e_latency"] = time.time() - self.started
        if is_first:
            meta["response_sent_to_client_ts"] = time.time()
        return {"text": text, "output_ids": self.output[begin:], "meta_info": meta}
