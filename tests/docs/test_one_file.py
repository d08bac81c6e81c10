"""The whole method on one page (examples/one_file.py) trains the same weights as the product, bit by bit."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import warnings
from pathlib import Path
from types import ModuleType

import pytest
from conftest import ROOT

torch = pytest.importorskip("torch")

PAGE = ROOT / "examples" / "one_file.py"


@pytest.fixture(scope="module")
def page() -> ModuleType:
    spec = importlib.util.spec_from_file_location("one_file", PAGE)
    assert spec is not None and spec.loader is not None
    module = sys.modules["one_file"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_model(page: ModuleType, folder: Path) -> Path:
    """The page's model and tokenizer as a Hugging Face folder."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    core = Tokenizer(models.WordLevel(page.ID_OF, unk_token=page.END))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    core.decoder = decoders.Fuse()
    special = {"eos_token": page.END, "pad_token": page.END, "unk_token": page.END, "additional_special_tokens": [page.USER, page.AGENT]}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, clean_up_tokenization_spaces=False, model_max_length=page.CONTEXT, **special)
    tokenizer.chat_template = (
        "{% for message in messages %}"
        f"{{% if message.role == 'assistant' %}}{page.AGENT}{{{{ message.content }}}}{page.END}"
        f"{{% else %}}{page.USER}{{{{ message.content }}}}{{% endif %}}"
        "{% endfor %}"
        f"{{% if add_generation_prompt %}}{page.AGENT}{{% endif %}}"
    )
    end = page.ID_OF[page.END]
    config = GPT2Config(
        vocab_size=len(page.VOCABULARY),
        n_positions=page.CONTEXT,
        n_embd=page.WIDTH,
        n_layer=page.LAYERS,
        n_head=page.HEADS,
        activation_function="gelu_pytorch_tanh",
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=end,
        eos_token_id=end,
        pad_token_id=end,
    )
    model = GPT2LMHeadModel(config)
    missing, unexpected = model.load_state_dict(page.initial_weights(), strict=False)
    assert missing == ["lm_head.weight"] and not unexpected  # it is the embedding
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_the_product_trains_the_same_weights_bit_by_bit(page: ModuleType, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    import turnwise as tw

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        folder = write_model(page, tmp_path / "model")
        changes = {"iterations": 3, "out": str(tmp_path), "model.path": str(folder)}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*fused layers do not take this model")
            run = tw.train(ROOT / "examples" / "one_file.toml", quiet=True, **changes)
        trained, product = page.train(3), load_file(run.folder / "model" / "model.safetensors")
    finally:
        torch.set_num_threads(threads)
    initial = page.initial_weights()
    assert product.keys() == trained.keys()
    for name, weight in trained.items():
        assert torch.equal(weight, product[name]), name
        assert not torch.equal(weight, initial[name]), f"{name} has not learned"


def test_the_page_needs_only_torch_numpy_and_an_environment() -> None:
    lines = PAGE.read_text().splitlines()
    assert len(lines) <= 300
    code = (
        "import sys; sys.path.insert(0, 'examples'); import one_file; print('transformers' in sys.modules, 'turnwise.learn' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.split() == ["False", "False"]
