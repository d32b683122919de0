"""Makes the lab's model, a small random Qwen3, without any download. Run with the engine's own Python.

    ENV/bin/python tests/lab/model.py [--shards N] [--shard-mib M] [--corrupt DIR]    last line: the path

A model is kept under build/ by its shape and made only once; like every cached thing here it counts only
when its directory appeared whole. Numbers of shards and their size are chosen so that a load shows its
progress.
"""

import argparse
import json
import os
import pathlib
import shutil
import sys
import tempfile

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
VOCABULARY = 512
HIDDEN = 64
TEXT = "hello world, the quick brown fox jumps over the lazy dog. "
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{m.role}}\n{{m.content}}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def save_tokenizer(out: pathlib.Path) -> None:
    """A byte-level tokenizer trained on one sentence."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=SPECIAL, initial_alphabet=alphabet)
    tokenizer.train_from_iterator([TEXT * 5] * 20, trainer)
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=SPECIAL[2], pad_token=SPECIAL[0])
    wrapped.chat_template = CHAT_TEMPLATE
    wrapped.save_pretrained(out)


def save_weights(out: pathlib.Path, shards: int, shard_bytes: int) -> None:
    """Random weights, a layer a shard: the width of the layers decides the bytes."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    attention = 2 * HIDDEN * (4 + 2) * 32
    intermediate = max(128, (shard_bytes // 2 - attention) // (3 * HIDDEN) // 64 * 64)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=intermediate,
        num_hidden_layers=max(1, shards - 1),
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=2048,
        tie_word_embeddings=False,
        eos_token_id=2,
        bos_token_id=0,
        pad_token_id=0,
        dtype="bfloat16",
    )
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(config).to(torch.bfloat16)
    layer_bytes = 2 * sum(parameter.numel() for parameter in model.model.layers[0].parameters())
    model.save_pretrained(out, max_shard_size=layer_bytes + 4096)


def make(
    shards: int = 8, shard_bytes: int = 4 << 20, cache: pathlib.Path = REPOSITORY / "build"
) -> pathlib.Path:
    """The directory of a model with about that many shards of about that size."""
    out = cache / f"lab-model-{shards}x{shard_bytes >> 10}k"
    if out.exists():
        return out
    cache.mkdir(parents=True, exist_ok=True)
    draft = pathlib.Path(tempfile.mkdtemp(prefix="lab-model-draft-", dir=cache))
    try:
        save_tokenizer(draft)
        save_weights(draft, shards, shard_bytes)
        draft.chmod(0o755)
        appear(draft, out)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return out


def appear(draft: pathlib.Path, out: pathlib.Path) -> None:
    """Move into place; another maker that was first has made the same."""
    try:
        draft.rename(out)
    except OSError:
        if not out.is_dir():
            raise


def shard_files(model: pathlib.Path) -> list[pathlib.Path]:
    """The weight files in order."""
    return sorted(model.glob("*.safetensors"))


def corrupt(model: pathlib.Path, copy_to: pathlib.Path) -> pathlib.Path:
    """Copy a model with its middle shard's header overwritten, as a bad disk leaves it; return that shard."""
    shutil.copytree(model, copy_to)
    shards = shard_files(copy_to)
    damaged = shards[len(shards) // 2]
    with damaged.open("r+b") as file:
        file.write(os.urandom(7) + b"\xff")
    return damaged


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--shard-mib", type=float, default=4.0)
    parser.add_argument(
        "--corrupt", type=pathlib.Path, help="also make a damaged copy there; its path is printed"
    )
    options = parser.parse_args()
    made = make(options.shards, int(options.shard_mib * (1 << 20)))
    described = {"shards": len(shard_files(made)), "bytes": sum(f.stat().st_size for f in shard_files(made))}
    print(json.dumps(described), file=sys.stderr)
    if options.corrupt:
        corrupt(made, options.corrupt)
        made = options.corrupt
    print(made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
