"""Snapshots read as source: from an unpacked wheel or a checkout, without importing anything heavy."""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import re
import subprocess
import sys
import typing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from tools.snapshots.installed import Found, Sections
from tools.snapshots.names import Section, classes, entry, literal_aliases, of_class
from vramcast.catalogue.tables import parse_yaml

FORMATS: Final = Path(__file__).resolve().parents[2] / "src" / "vramcast" / "catalogue" / "formats"
"""Where the snapshots lie."""


def release(folder: Path) -> str:
    """Version of an unpacked wheel, else the tag or commit of a checkout.

    Raises: SystemExit where it is neither: a snapshot must say what it is of
    """
    for path in folder.glob("*.dist-info/METADATA"):
        return re.findall(r"^Version: (.*)$", path.read_text(encoding="utf-8"), re.M)[0]
    for command in (["describe", "--tags", "--exact-match"], ["rev-parse", "--short=8", "HEAD"]):
        done = subprocess.run(["git", "-C", str(folder), *command], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return done.stdout.strip()
    raise SystemExit(f"{folder} is neither an unpacked wheel nor a checkout")


TORCHTITAN_CLASSES: Final = {
    "training": ("config/configs.py", "TrainingConfig"),
    "parallelism": ("config/configs.py", "ParallelismConfig"),
    "compile": ("config/configs.py", "CompileConfig"),
    "comm": ("config/configs.py", "CommConfig"),
    "debug": ("config/configs.py", "DebugConfig"),
    "optimizer": ("components/optimizer/optimizer.py", "OptimizersContainer.Config"),
    "loss": ("components/loss.py", "ChunkedLossWrapper.Config"),
    "selective_ac": ("distributed/activation_checkpoint.py", "SelectiveAC.Config"),
    "full_ac": ("distributed/activation_checkpoint.py", "FullAC.Config"),
}
"""Section of the command line -> file and class that declare it."""


def torchtitan(folder: Path) -> Found:
    """Dataclasses of the configuration; the functions of every `models/<module>/config_registry.py`."""
    package = folder / "torchtitan"
    sections: Sections = {}
    for section, (file, name) in TORCHTITAN_CLASSES.items():
        sections[section] = of_class(classes(package / file)[name])
    for registry in sorted(package.glob("models/*/config_registry.py")):
        tree = ast.parse(registry.read_text(encoding="utf-8"))
        names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name[0] != "_"]
        sections[f"models/{registry.parent.name}"] = {name: entry() for name in names}
    return Found("torchtitan", release(folder), "dataclasses of its configuration, read as source", sections)


def vllm(folder: Path) -> Found:
    """Fields of EngineArgs and of the server's own arguments; names of types are looked up in vllm/config."""
    package = folder / "vllm"
    aliases = literal_aliases(package / "config")
    engine = of_class(classes(package / "engine" / "arg_utils.py")["EngineArgs"], aliases)
    frontend = classes(package / "entrypoints" / "common" / "cli_args.py")
    server = of_class(frontend["BaseFrontendArgs"]) | of_class(frontend["FrontendArgs"])
    sections = {"EngineArgs": engine, "FrontendArgs": server}
    return Found("vllm", release(folder), "classes EngineArgs and FrontendArgs, read as source", sections)


SGLANG_INSTEAD: Final = {
    "enable_dp_attention": "no option of the command line any more; use attn_dp_size",
    "disable_cuda_graph": "no option of the command line any more; use disable_prefill_cuda_graph and "
                          "disable_decode_cuda_graph",
}
"""Option that is gone -> what does the same now."""


def sglang(folder: Path) -> Found:
    """Fields of the structs that make up ServerArgs; those without an option on the command line are left out."""
    names: Section = {}
    hidden: set[str] = set()
    for path in sorted((folder / "sglang" / "srt" / "arg_groups" / "fields").glob("*.py")):
        for node in classes(path).values():
            found = of_class(node)
            for item in node.body:
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                    hidden |= _sglang_option(item, found)
            names |= found
    kept = {name: e for name, e in names.items() if name not in hidden}
    removed = {name: SGLANG_INSTEAD.get(name, "no option of the command line") for name in sorted(hidden)
               if name[0] != "_"}
    how = "structs of srt/arg_groups/fields, read as source"
    return Found("sglang", release(folder), how, {"ServerArgs": kept}, {"ServerArgs": removed})


def _sglang_option(item: ast.AnnAssign, found: Section) -> set[str]:
    """Puts other spellings into the entry; the names that are no option."""
    name = ast.unparse(item.target)
    calls = [n for n in ast.walk(item.annotation) if isinstance(n, ast.Call) and ast.unparse(n.func) == "Arg"]
    words = {word.arg: word.value for call in calls for word in call.keywords}
    if "no_cli" in words:
        return {name}
    given = ast.literal_eval(words["aliases"]) if "aliases" in words else []
    given += [ast.literal_eval(words["cli_name"])] if "cli_name" in words else []
    if given and name in found:
        found[name]["aliases"] = [text.lstrip("-").replace("-", "_") for text in given]
    return set()


def llamafactory(folder: Path) -> Found:
    """The dataclasses of hparams; transformers' own TrainingArguments come beside them."""
    hparams = folder / "llamafactory" / "hparams"
    aliases = literal_aliases(folder / "llamafactory" / "extras")
    found: Section = {}
    for path in sorted(hparams.glob("*_args.py")):
        for name, node in classes(path).items():
            if name != "EvaluationArguments":
                found |= of_class(node, aliases)
    trainer = json.loads((FORMATS / "transformers.json").read_text(encoding="utf-8"))
    for name, known in trainer["sections"]["TrainingArguments"].items():
        found.setdefault(name, known)
    how = f"dataclasses of hparams, read as source, and TrainingArguments of transformers {trainer['version']}"
    return Found("llamafactory", release(folder), how, {"arguments": found})


def trl(folder: Path) -> Found:
    """The dataclasses of the trainers' configurations, of models, data and scripts; TrainingArguments come beside."""
    package = folder / "trl"
    base = of_class(classes(package / "trainer" / "base_config.py")["_BaseConfig"])
    sections: Sections = {}
    for name in ("SFT", "DPO", "KTO", "Reward", "RLOO", "GRPO", "ORPO", "CPO", "PRM"):
        small = name.lower()
        places = (package / "trainer", package / "experimental" / small)
        file = next(path for place in places if (path := place / f"{small}_config.py").exists())
        node = classes(file)[f"{name}Config"]
        sections[f"{name}Config"] = base | of_class(node)
    node = classes(package / "experimental" / "gkd" / "gkd_config.py")["GKDConfig"]
    sections["GKDConfig"] = of_class(node)  # over SFTConfig
    sections["ModelConfig"] = of_class(classes(package / "trainer" / "model_config.py")["ModelConfig"])
    scripts: Section = {}
    for file in ("utils", "grpo", "rloo"):
        for name, node in classes(package / "scripts" / f"{file}.py").items():
            if name.endswith("ScriptArguments") or name == "DatasetMixtureConfig":
                scripts |= of_class(node)
    sections["ScriptArguments"] = scripts
    return Found("trl", release(folder), "dataclasses of its trainers and scripts, read as source", sections)


AXOLOTL_INPUT: Final = "AxolotlInputConfig"

AXOLOTL_TABLES: Final = {
    "fsdp_config": "FSDPConfig", "trl": "TRLConfig", "vllm": "VllmConfig", "peft": "PeftConfig", "qat": "QATConfig",
    "selective_checkpointing": "SelectiveCheckpointingConfig",
}
"""Table of the file -> the class that declares it."""


def axolotl(folder: Path) -> Found:
    """The pydantic classes of its schema, and those of its plugins."""
    package = folder / "src" / "axolotl"
    schemas = package / "utils" / "schemas"
    aliases = literal_aliases(schemas)
    known = {name: node for path in sorted(schemas.glob("*.py")) for name, node in classes(path).items()}
    waiting, names = [AXOLOTL_INPUT], Section()
    while waiting:
        node = known.get(waiting.pop(0))
        if node is not None:
            waiting += [ast.unparse(base) for base in node.bases]
            names = _by_alias(node, of_class(node, aliases)) | names
    for path in sorted(package.glob("integrations/*/args.py")):
        for name, node in classes(path).items():
            if name.endswith("Args") and "BaseModel" in map(ast.unparse, node.bases):
                names = of_class(node, aliases) | names
    tables = {table: of_class(known[name], aliases) for table, name in AXOLOTL_TABLES.items()}
    removed = {"config": {name: "deprecated" for name in of_class(known["DeprecatedParameters"]) if name not in names}}
    how = "pydantic classes of utils/schemas and integrations/*/args.py, read as source"
    version = (folder / "VERSION").read_text(encoding="utf-8").strip()
    return Found("axolotl", version, how, {"config": names, **tables}, removed)


def _by_alias(node: ast.ClassDef, found: Section) -> Section:
    """Names as a file writes them: fields with an alias take both."""
    for item in node.body:
        call = item.value if isinstance(item, ast.AnnAssign) else None
        if isinstance(call, ast.Call) and isinstance(item, ast.AnnAssign):
            alias = next((word.value for word in call.keywords if word.arg == "alias"), None)
            if isinstance(alias, ast.Constant):
                found[ast.unparse(item.target)]["aliases"] = [alias.value]
    return found


def swift(folder: Path) -> Found:
    """The dataclasses of ms-swift's arguments; of the Trainer's commands transformers' own TrainingArguments too."""
    package, found = folder / "swift", Section()
    files = [*sorted(package.glob("arguments/base_args/*.py")), package / "arguments" / "tuner_args.py",
             package / "arguments" / "sft_args.py", package / "arguments" / "rlhf_args.py",
             package / "arguments" / "pretrain_args.py", package / "trainers" / "arguments.py",
             *sorted(package.glob("rlhf_trainers/arg*.py"))]
    for path in files:
        for node in classes(path).values():
            found |= of_class(node)
    trainer = json.loads((FORMATS / "transformers.json").read_text(encoding="utf-8"))
    for name, known in trainer["sections"]["TrainingArguments"].items():
        found.setdefault(name, known)
    version = re.findall(r"__version__ = '(.*)'", (package / "version.py").read_text(encoding="utf-8"))[0]
    how = f"dataclasses of its arguments, read as source, and TrainingArguments of transformers {trainer['version']}"
    on_megatron = Section()
    for path in [*sorted(package.glob("arguments/base_args/*.py")), *(
            package / "megatron" / "arguments" / f"{name}_args.py"
            for name in ("megatron", "megatron_base", "sft", "pretrain", "rlhf"))]:
        for node in classes(path).values():
            on_megatron |= of_class(node)
    return Found("ms-swift", version, how, {"arguments": found, "megatron": on_megatron})


def megatron(folder: Path) -> Found:
    """The options of Megatron-LM's own parser; needs PyTorch and Triton, no GPU."""
    sys.path.insert(0, str(folder))
    if not hasattr(typing, "override"):  # Megatron-LM asks for Python 3.12
        typing.override = lambda function: function  # type: ignore[attr-defined]
    module = importlib.import_module("megatron.training.arguments")
    parser = module.add_megatron_arguments(argparse.ArgumentParser(allow_abbrev=False))
    names: Section = {}
    for action in parser._actions:
        options = [text.removeprefix("--") for text in action.option_strings if text.startswith("--")]
        if not options or options == ["help"]:
            continue
        kind = {int: "int", float: "number", str: "text"}.get(action.type, "any")
        kind = "flag" if action.nargs == 0 else "list" if action.nargs in ("+", "*") else kind
        default = None if action.nargs == 0 else getattr(action.default, "name", action.default)
        choices = [getattr(choice, "name", choice) for choice in action.choices or ()]
        names[options[0]] = entry(kind=kind, default=default, choices=choices, aliases=options[1:])
    return Found("Megatron-LM", release(folder), "add_megatron_arguments on an ArgumentParser", {"arguments": names})


LLAMACPP_OPTION: Final = re.compile(
    r"add_opt\(common_arg\(\s*\{(?P<names>[^}]*)\},(?P<rest>.*?)\n    \)", re.S
)


def llamacpp(folder: Path) -> Found:
    """The options of common/arg.cpp; what an option takes is the type its handler is called with."""
    text = (folder / "common" / "arg.cpp").read_text(encoding="utf-8")
    names: Section = {}
    for match in LLAMACPP_OPTION.finditer(text):
        options = re.findall(r'"(-[^"]+)"', match["names"])
        long = [name.removeprefix("--") for name in options if name.startswith("--")]
        short = [name.removeprefix("-") for name in options if not name.startswith("--")]
        if not long:
            continue
        handler = re.search(r"\]\(common_params & \w*(?:, (?P<type>[\w:& ]+?) ?\w*)?\)", match["rest"])
        kind = {"int": "int", "const std::string &": "any"}.get(((handler and handler["type"]) or "").strip(), "flag")
        names[long[0]] = entry(kind=kind, aliases=[*long[1:], *short])
    return Found("llama.cpp", release(folder), "options of common/arg.cpp, read as source", {"arguments": names})


def tensorrt_llm(folder: Path) -> Found:
    """The options of `trtllm-serve serve`, and the fields of KvCacheConfig for the file beside it."""
    path = folder / "tensorrt_llm" / "commands" / "serve.py"
    serve = next(
        node for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and node.name == "serve"
    )
    names = dict(_click_options(serve))
    arguments = classes(folder / "tensorrt_llm" / "llmapi" / "llm_args.py")
    sections: Sections = {"options": names, "kv_cache_config": of_class(arguments["KvCacheConfig"])}
    sections["config"] = of_class(arguments["BaseLlmArgs"]) | of_class(arguments["TorchLlmArgs"])
    sections["config"]["kv_cache_config"] = entry(section="kv_cache_config")
    return Found("tensorrt-llm", release(folder), "options of trtllm-serve and its arguments, read as source", sections)


def _click_options(function: ast.FunctionDef) -> Iterator[tuple[str, dict[str, Any]]]:
    for call in function.decorator_list:
        if not isinstance(call, ast.Call) or ast.unparse(call.func) != "click.option":
            continue
        options = [item.value.removeprefix("--") for item in call.args if isinstance(item, ast.Constant)]
        words = {word.arg: word.value for word in call.keywords}
        given = ast.unparse(words["type"]) if "type" in words else ""
        kind = {"int": "int", "float": "number", "str": "text"}.get(given, "any")
        kind = "flag" if "is_flag" in words else kind
        yield options[0], entry(kind=kind, aliases=dict.fromkeys(options[1:]))


RUST_ARGUMENT: Final = re.compile(r"#\[clap\(([^\]]*)\)\]\s+(?:///[^\n]*\s+)*(\w+): ([\w<>]+),")
RUST_KINDS: Final = {"bool": "flag", "String": "text", "f32": "number", "Vec<usize>": "list"}


def tgi(folder: Path) -> Found:
    """The fields of the launcher's `Args`; numbers are whole unless they are f32."""
    text = (folder / "launcher" / "src" / "main.rs").read_text(encoding="utf-8")
    names: Section = {}
    for _, name, kind in RUST_ARGUMENT.findall(text[text.index("struct Args {"):]):
        plain = re.sub(r"^Option<(.*)>$", r"\1", kind)
        whole = plain in ("usize", "u16", "u32", "u64")
        names[name] = entry(kind="int" if whole else RUST_KINDS.get(plain, "text"))
    return Found("text-generation-inference", release(folder), "`Args` of launcher/src/main.rs, read as source",
                 {"options": names})


def lmdeploy(folder: Path) -> Found:
    """The options of `lmdeploy serve api_server`: its own, and those that it asks ArgumentHelper for."""
    cli = folder / "lmdeploy" / "cli"
    helper = next(node for node in ast.parse((cli / "utils.py").read_text(encoding="utf-8")).body
                  if isinstance(node, ast.ClassDef) and node.name == "ArgumentHelper")
    helpers = {node.name: node for node in helper.body if isinstance(node, ast.FunctionDef)}
    server = next(node for node in ast.walk(ast.parse((cli / "serve.py").read_text(encoding="utf-8")))
                  if isinstance(node, ast.FunctionDef) and node.name == "add_parser_api_server")
    asked = [call.func.attr for call in ast.walk(server) if isinstance(call, ast.Call)
             and isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value) == "ArgumentHelper"]
    names: Section = {}
    for function in (server, *(helpers[name] for name in asked)):
        names |= dict(_argparse_options(function))
    return Found("lmdeploy", release(folder), "options of lmdeploy/cli/serve.py, read as source", {"options": names})


def _argparse_options(function: ast.FunctionDef) -> Iterator[tuple[str, dict[str, Any]]]:
    for call in ast.walk(function):
        if not isinstance(call, ast.Call) or not ast.unparse(call.func).endswith(".add_argument"):
            continue
        options = [item.value.lstrip("-").replace("-", "_") for item in call.args if isinstance(item, ast.Constant)]
        words = {word.arg: ast.unparse(word.value) for word in call.keywords}
        kind = {"int": "int", "float": "number", "str": "text"}.get(words.get("type", ""), "any")
        kind = "flag" if "store_" in words.get("action", "") else "list" if "nargs" in words else kind
        yield options[0], entry(kind=kind, aliases=dict.fromkeys(options[1:]))


VERL_FILES: Final = ("_generated_ppo_trainer.yaml", "_generated_ppo_megatron_trainer.yaml", "model_engine/dp.yaml")
VERL_FIRST_FILES: Final = ("ppo_trainer.yaml", "ppo_megatron_trainer.yaml")
"""Its configuration with every default in place, and what held it all up to 0.4."""

VERL_RELEASES: Final = ("v0.9.0", "v0.8.0", "v0.7.1", "v0.7.0", "v0.6.1", "v0.5.0", "v0.4.1", "v0.3.0.post1")


def verl(folder: Path) -> Found:
    """The names of the trainer's configuration, FSDP's and Megatron's, without `actor_rollout_ref`; a checkout with
    its releases, whose names are remembered where they are gone. Names say the first release that has them."""
    config = "verl/trainer/config"
    version = (folder / "verl" / "version" / "version").read_text(encoding="utf-8").strip()
    names: Section = {}
    for file in VERL_FILES:
        for name, default in _leaves(parse_yaml((folder / config / file).read_text(encoding="utf-8"))):
            names.setdefault(name, entry(default=default) | {"since": version.removesuffix(".dev")})
    removed: dict[str, str] = {}
    for tag in VERL_RELEASES:
        for file in VERL_FIRST_FILES if tag < "v0.5" else VERL_FILES:
            shown = subprocess.run(["git", "-C", str(folder), "show", f"{tag}:{config}/{file}"], capture_output=True,
                                   text=True, check=False)
            for name, _ in _leaves(parse_yaml(shown.stdout) or {}):
                removed.setdefault(name, f"last in {tag}")
                if name in names:
                    names[name]["since"] = tag.removeprefix("v")
    for found in names.values():
        if found["since"] == VERL_RELEASES[-1].removeprefix("v"):
            del found["since"]
    gone = {name: text for name, text in removed.items() if name not in names}
    how = f"its configuration at {release(folder)} with every default in place, read as YAML"
    return Found("verl", version, how, {"config": names}, {"config": gone})


OPENRLHF_RELEASES: Final = ("v0.10.1", "v0.9.10", "v0.9.9", "v0.9.5", "v0.9.1", "v0.9.0", "v0.8.11", "v0.8.8", "v0.8.4",
                             "v0.7.5", "v0.6.4")


def openrlhf(folder: Path) -> Found:
    """The options of train_ppo_ray; a checkout with its releases, whose names are remembered where they are gone."""
    file = "openrlhf/cli/train_ppo_ray.py"
    names = dict(_written_options(ast.parse((folder / file).read_text(encoding="utf-8"))))
    removed: dict[str, str] = {}
    for tag in OPENRLHF_RELEASES:
        shown = subprocess.run(["git", "-C", str(folder), "show", f"{tag}:{file}"], capture_output=True, text=True,
                               check=True)
        for name, _ in _written_options(ast.parse(shown.stdout)):
            removed.setdefault(name, f"last in {tag}")
    gone = {name: text for name, text in removed.items() if name not in names}
    version = (folder / "version.txt").read_text(encoding="utf-8").strip()
    return Found("openrlhf", version, f"options of its train_ppo_ray.py at {release(folder)}, read as source",
                 {"options": names}, {"options": gone})


def _written_options(tree: ast.Module) -> Iterator[tuple[str, dict[str, Any]]]:
    """Options with their defaults; a name that a loop makes is one for each of its items."""
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call) or not ast.unparse(call.func).endswith(".add_argument"):
            continue
        written = ast.unparse(call.args[0]).removeprefix("f").strip("'")
        words = {word.arg: word.value for word in call.keywords}
        default = words.get("default")
        known = default.value if isinstance(default, ast.Constant) else None
        action = ast.unparse(words["action"]) if "action" in words else ""
        kind = "flag" if "store_" in action else "list" if "nargs" in words else "any"
        for prefix in ("actor", "critic") if "{prefix}" in written else ("",):
            yield written.replace("{prefix}", prefix).lstrip("-"), entry(kind=kind, default=known)


def _leaves(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Names with points between, and their values."""
    for name, value in table.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{name}.")
        elif name != "_target_":
            yield f"{prefix}{name}".removeprefix("actor_rollout_ref."), value


READERS: Final[dict[str, Callable[[Path], Found]]] = {
    "torchtitan": torchtitan,
    "vllm": vllm,
    "sglang": sglang,
    "llamafactory": llamafactory,
    "trl": trl,
    "axolotl": axolotl,
    "swift": swift,
    "megatron": megatron,
    "llamacpp": llamacpp,
    "tensorrt-llm": tensorrt_llm,
    "tgi": tgi,
    "lmdeploy": lmdeploy,
    "verl": verl,
    "openrlhf": openrlhf,
}
"""Format -> how its source is read."""
