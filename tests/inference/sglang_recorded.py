"""Some of what a real SGLang 0.5.17 answered (one H200, bf16, SmolLM2's shape, random weights).

Requests and answers as they went over the wire, model paths replaced, long lists cut.
"""

PROMPT = [1, 4093, 198, 2683, 359, 354, 5356, 11173, 30]


def _meta(**changes):
    return {
        "id": "7e2d2dbd21b9401584381f6f309570b2",
        "finish_reason": {"type": "length", "length": 2},
        "prompt_tokens": 9,
        "weight_version": "default",
        "num_retractions": 0,
        "input_token_logprobs": [],
        "output_token_logprobs": [],
        "output_token_logprobs_length": 2,
        "reasoning_tokens": 0,
        "completion_tokens": 2,
        "cached_tokens": 0,
        "cached_tokens_details": None,
        "dp_rank": None,
        "e2e_latency": 0.15457852000002958,
        "response_sent_to_client_ts": 1794705833.7604985,
        **changes,
    }


IDS = {
    "text": "icher Limits",
    "output_ids": [43531, 41751],
    "meta_info": _meta(
        output_token_logprobs=[
            [-10.905238151550293, 43531, None],
            [-10.906769752502441, 41751, None],
        ]
    ),
}
STOP_TOKEN = {
    "text": " parityovich",
    "output_ids": [31154, 29258, 48300],
    "meta_info": _meta(
        finish_reason={"type": "stop", "matched": 48300},
        output_token_logprobs=[
            [-10.90682601928711, 31154, None],
            [-10.710204124450684, 29258, None],
            [-11.092826843261719, 48300, None],
        ],
        output_token_logprobs_length=3,
        completion_tokens=3,
        cached_tokens=8,
        cached_tokens_details={"device": 8, "host": 0},
    ),
}
STOP_STRING = {
    "text": "ructur",
    "output_ids": [28947],
    "meta_info": _meta(
        finish_reason={"type": "stop", "matched": "e"},
        output_token_logprobs=[[-10.441065788269043, 28947, None]],
        output_token_logprobs_length=1,
        completion_tokens=1,
    ),
}
PROMPT_LOG_PROBS = {
    "text": " peat",
    "output_ids": [20972],
    "meta_info": _meta(
        finish_reason={"type": "length", "length": 1},
        input_token_logprobs=[
            [None, 1, None],
            [-10.499361991882324, 4093, None],
            [-10.463664054870605, 198, None],
            [-11.194084167480469, 2683, None],
            [-11.20853328704834, 359, None],
            [-11.040081024169922, 354, None],
            [-11.048961639404297, 5356, None],
            [-10.465202331542969, 11173, None],
            [-10.262015342712402, 30, None],
        ],
        output_token_logprobs=[[-8.855128288269043, 20972, None]],
        input_top_logprobs=[
            None,
            [[-8.956393241882324, 32133, None], [-9.026705741882324, 25983, None]],
        ],
        output_top_logprobs=[[[-8.855128288269043, 20972, None], [-8.886378288269043, 6164, None]]],
        output_token_logprobs_length=1,
        completion_tokens=1,
    ),
}
