"""What happens inside an SGLang, on a tiny transformers model: real tokens, real log-probs.

It follows the source of 0.5.23 in what a client can see, its dangers included: a token outside the
vocabulary, more top log-probs than there are tokens, min-p with deterministic inference, or a
tensor of a wrong shape make it exit without an answer.
"""

import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.distributed.distributed_c10d as c10d
from safetensors.torch import load_file


@dataclass
class Run:
    """A request while it is sampled."""

    rid: str
    ids: list
    params: dict
    body: dict
    max_new: int
    output: list = field(default_factory=list)
    entries: list = field(default_factory=list)
    tops: list = field(default_factory=list)
    is_aborted: bool = False


class Refused(ValueError):
    """A request that is answered with 400."""


class Exited(Exception):
    """Nobody is there any more."""


class TinySGLang:
    def __init__(self, model, tokenizer, model_path="MODEL_A", *, deterministic=False):
        self.model, self.tokenizer, self.launch_path = model.eval(), tokenizer, model_path
        self.is_deterministic = deterministic
        self.context = model.config.max_position_embeddings
        self.vocab_size = model.config.vocab_size
        self.step_delay = 0.0
        self.freeze_after = None  # says nothing more after so many tokens
        self.hold_after = None  # waits after so many tokens until it is aborted
        self.is_dead = False
        self.num_flushed = 0
        self.is_released = set()  # memory of the GPU that it has given up
        self._prefixes = {}  # what was computed for a prompt: wrong after an update, if kept
        self._runs = {}
        self._groups = {}
        self._change = threading.Condition()
        self._is_updating = False
        self._forward = threading.Lock()
        self._chance = torch.Generator().manual_seed(0)

    # What it says of itself.

    def server_info(self):
        return {
            "model_path": self.launch_path,
            "enable_deterministic_inference": self.is_deterministic,
            "sampling_backend": "pytorch",
            "max_req_input_len": self.context - 6,
        }

    # Generation.

    def generate(self, body):
        ids = body["input_ids"]
        run = self._admit(ids, body["sampling_params"], body["rid"], body)
        with self._reading(run):
            if any(not 0 <= i < self.vocab_size for i in ids):
                self._exit()
            logits, inputs = self._prefill(run)
            while True:
                self._sample(run, logits)
                if finish := self._finish(run):
                    break
                logits = self._next_logits([*ids, *run.output])
        text = self.tokenizer.decode(run.output, skip_special_tokens=True)
        if isinstance(finish.get("matched"), str):
            text = text[: text.find(finish["matched"])]
        meta = {
            "id": run.rid,
            "finish_reason": finish,
            "prompt_tokens": len(run.ids),
            "completion_tokens": len(run.output),
            "input_token_logprobs": inputs,
            "output_token_logprobs": run.entries,
        }
        if body.get("top_logprobs_num"):
            meta["output_top_logprobs"] = run.tops
        return {"text": text, "output_ids": run.output, "meta_info": meta}

    def _admit(self, ids, params, rid, body):
        if len(params.get("stop") or ()) > 32:
            raise Refused(f"at most 32 stop strings are allowed, got {len(params['stop'])}")
        if len(ids) >= self.context - 6:
            raise Refused(f"Input length ({len(ids)} tokens) exceeds the maximum allowed length")
        max_new = min(params.get("max_new_tokens", 128), self.context - 2 - len(ids))
        return Run(rid, list(ids), params, body, max_new)

    @contextmanager
    def _reading(self, run):
        """Requests wait for an update that is under way, and an update for the requests."""
        with self._change:
            self._change.wait_for(lambda: not self._is_updating or self.is_dead)
            self._runs[run.rid] = run
        try:
            yield
        finally:
            with self._change:
                del self._runs[run.rid]
                self._change.notify_all()

    @torch.no_grad()
    def _next_logits(self, ids):
        if self.is_dead:
            raise Exited
        time.sleep(self.step_delay)
        with self._forward:
            return self.model(torch.tensor([ids])).logits[0, -1]

    @torch.no_grad()
    def _prefill(self, run):
        start = run.body.get("logprob_start_len", -1)
        key = tuple(run.ids)
        if start >= 0:
            with self._forward:
                logits = self.model(torch.tensor([run.ids])).logits[0]
            log_probs = torch.log_softmax(logits[:-1].float(), -1)
            own = [
                None,
                *log_probs.gather(1, torch.tensor(run.ids[1:])[:, None]).flatten().tolist(),
            ]
            inputs = [[None, run.ids[start], None]]
            inputs += [[own[i], run.ids[i], None] for i in range(start + 1, len(own))]
            return logits[-1], inputs
        if key not in self._prefixes:
            self._prefixes[key] = self._next_logits(run.ids)
        return self._prefixes[key], []

    def _top(self, log_probs, num_top):
        if num_top > self.vocab_size:
            self._exit()
        values, ids = log_probs.topk(num_top)
        return [[v, i, None] for v, i in zip(values.tolist(), ids.tolist(), strict=True)]

    def _sample(self, run, logits):
        params = run.params
        temperature, top_k = params.get("temperature", 1.0), params.get("top_k", -1)
        if temperature < 1e-6:
            temperature, top_k = 1.0, 1
        log_probs = torch.log_softmax(logits.float() / temperature, -1)
        ordered, ids = log_probs.exp().sort(descending=True)
        before = ordered.cumsum(0) - ordered
        kept = before <= params.get("top_p", 1.0)
        if top_k > 0:
            kept[top_k:] = False
        if params.get("min_p", 0.0) > 0.0:
            if self.is_deterministic:
                self._exit()
            kept &= ordered >= ordered[0] * params["min_p"]
        chance = self._chance
        if self.is_deterministic:
            place = len(run.ids) + len(run.output)
            seed = hash((params.get("sampling_seed", 42), place)) % 2**63
            chance = torch.Generator().manual_seed(seed)
        with self._forward:
            place = torch.multinomial(ordered * kept, 1, generator=chance).item()
        token = ids[place].item()
        run.output.append(token)
        run.entries.append([log_probs[token].item(), token, None])
        if num_top := run.body.get("top_logprobs_num", 0):
            run.tops.append(self._top(log_probs, num_top))
        while self._waits(run):
            time.sleep(0.01)
            if self.is_dead:
                raise Exited

    def _waits(self, run):
        if self.freeze_after is not None and len(run.output) >= self.freeze_after:
            return True
        is_held = self.hold_after is not None and len(run.output) >= self.hold_after
        return is_held and not run.is_aborted

    def _finish(self, run):
        if run.is_aborted:
            return {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
        for stop in run.params.get("stop") or ():
            # It looks no further back than the string's own encoding is long.
            window = len(self.tokenizer.encode(stop, add_special_tokens=False)) + 1
            if stop in self.tokenizer.decode(run.output[-window:]):
                return {"type": "stop", "matched": stop}
        last = run.output[-1]
        ends = {self.tokenizer.eos_token_id, *(run.params.get("stop_token_ids") or ())}
        if last in ends and not run.params.get("ignore_eos"):
            return {"type": "stop", "matched": last}
        if len(run.output) >= run.max_new:
            return {"type": "length", "length": run.max_new}
        return None

    # Control.

    def abort(self, rid):
        with self._change:
            for run in self._runs.values():
                run.is_aborted |= bool(rid) and run.rid.startswith(rid)

    def update_weights_from_disk(self, path, *, flush_cache=True):
        """(success, message), after the requests under way have ended."""
        with self._updating():
            files = sorted(Path(path).glob("*.safetensors"))
            if not files:
                return False, (
                    "Failed to get weights iterator: Repo id must be in the form 'repo_name' or "
                    f"'namespace/repo_name': '{path}'. Use `repo_type` argument if needed.."
                )
            for file in files:
                self._load(load_file(file))
            return self._updated(flush_cache)

    def update_weights_from_tensor(self, named, *, flush_cache=True):
        with self._updating():
            self._load(dict(named))
            return self._updated(flush_cache)

    def init_weights_update_group(self, body):
        """Join as SGLang does, through torch's own helper; the rank is that of its only worker."""
        address = f"tcp://{body['master_address']}:{body['master_port']}"
        rank, size, name = body["rank_offset"], body["world_size"], body["group_name"]
        store, *_ = next(c10d.rendezvous(address, rank, size, timeout=c10d.default_pg_timeout))
        self._groups[name], _ = c10d._new_process_group_helper(
            size,
            rank,
            [],
            c10d.Backend(body["backend"]),
            c10d.PrefixStore(name, store),
            name,
            timeout=c10d.default_pg_timeout,
        )
        return True, "Succeeded to initialize custom process group."

    def update_weights_from_distributed(self, body):
        named, group = {}, self._groups[body["group_name"]]
        for name, dtype, shape in zip(body["names"], body["dtypes"], body["shapes"], strict=True):
            named[name] = torch.empty(shape, dtype=getattr(torch, dtype))
            group.broadcast([named[name]], c10d.BroadcastOptions()).wait()
        return self.update_weights_from_tensor(named, flush_cache=body["flush_cache"])

    @contextmanager
    def _updating(self):
        with self._change:
            self._is_updating = True
            self._change.wait_for(lambda: not self._runs)
        try:
            yield
        finally:
            with self._change:
                self._is_updating = False
                self._change.notify_all()

    def _load(self, named):
        assert "weights" not in self.is_released
        try:
            self.model.load_state_dict(named, strict=False)
        except RuntimeError:
            self._exit()

    def _updated(self, flush_cache):
        if flush_cache:
            self._prefixes.clear()
            self.num_flushed += 1
        return True, "Succeeded to update model weights."

    def _exit(self):
        self.is_dead = True
        raise Exited
