"""What `turnwise export` writes after a training run, loaded by vLLM."""

import pytest

from beside_vllm.cases import TOLERANCE, Saved, sample_all
from turnwise import ConfigStore, Trainer, load_model
from turnwise.cli import main
from turnwise.inference import GenerationRequest, SamplingParams
from turnwise.inference.vllm import VLLMInferenceEngine


def test_vllm_loads_an_export_and_samples_as_the_trained_model_does(tmp_path):
    config = ConfigStore()
    config.training.batch_size = 4
    config.training.warm_start, config.training.warm_start_steps = "random", 3
    config.inference.max_tokens, config.inference.max_turns = 4, 2
    config.checkpoint.output_dir, config.checkpoint.run_name = str(tmp_path), "run"
    with Trainer(config) as trainer:
        trainer.fit(1, 2)
    folder = tmp_path / "exported"
    with pytest.raises(SystemExit, match="0"):
        main(["export", str(tmp_path / "run"), str(folder)])
    exported = load_model(folder, device="cpu")
    untrained = Saved(folder, load_model("tiny", device="cpu").model)
    trained = Saved(folder, exported.model)
    prompt = exported.tokenizer.apply_chat_template(
        [{"role": "user", "content": "Guess."}], add_generation_prompt=True, return_dict=False
    )
    requests = [GenerationRequest(prompt, 24, SamplingParams(), seed=seed) for seed in range(8)]
    with VLLMInferenceEngine(str(folder), block_size=32, kv_cache_memory_bytes=2**28) as engine:
        results = sample_all(engine, requests)
    pairs = list(zip(requests, results, strict=True))
    assert max(trained.gap(request, result) for request, result in pairs) < TOLERANCE
    assert max(untrained.gap(request, result) for request, result in pairs) > TOLERANCE
