"""Exported models on the Hugging Face hub: weights, metadata, and the card as the page (extra `hub`)."""

import importlib
from typing import Any

import yaml

from fedloom.core.errors import ConfigError, printable
from fedloom.results.export_model import ExportedFiles


def check_hub(repository: str) -> Any:
    """Return the module huggingface_hub for uploads to a `repository`, "owner/name".

    Raises `ConfigError` if the package or a token is missing, or if the name is none."""
    try:
        hub = importlib.import_module("huggingface_hub")
        importlib.import_module("huggingface_hub.utils")
    except ImportError:
        raise ConfigError("the package huggingface_hub is not installed; install fedloom[hub]") from None
    try:
        hub.utils.validate_repo_id(repository)
    except ValueError as error:
        raise ConfigError(f"--hub {printable(repository)}: {printable(str(error))}") from None
    if "/" not in repository:
        raise ConfigError(f"--hub {repository}: name the owner as well, such as my-name/{repository}")
    if hub.get_token() is None:
        raise ConfigError("--hub: there is no token of the hub; set HF_TOKEN, or log in once with `hf auth login`")
    return hub


def upload(exported: ExportedFiles, repository: str, public: bool = False) -> str:
    """Upload an exported model in one commit, and return the address of its page.

    Args:
        exported: the files of `export_model`.
        repository: "owner/name", created if it does not exist.
        public: whether everybody may see a new repository. One that exists stays as it is.

    Raises `ConfigError` as `check_hub`, and if the hub cannot be reached or refuses.
    """
    hub = check_hub(repository)
    content = _page(exported).encode()
    files = {"README.md": content, **{path.name: str(path) for path in (exported.model, exported.metadata)}}
    additions = [hub.CommitOperationAdd(path_in_repo=name, path_or_fileobj=file) for name, file in files.items()]
    try:
        address = hub.HfApi().create_repo(repository, private=not public, exist_ok=True)
        hub.HfApi().create_commit(repository, additions, commit_message=f"Add {exported.model.name}")
    except Exception as error:  # of HTTP as well, whose classes differ between versions of huggingface_hub
        reason = printable((str(error).strip() or type(error).__name__).splitlines()[0])
        raise ConfigError(f"--hub {repository}: {reason}; the files are here: {exported.model.parent}") from error
    return str(address)


def _page(exported: ExportedFiles) -> str:
    """Return the card below the facts by which the hub sorts models."""
    described = exported.described
    tags = ["federated-learning", described.training.method, described.architecture.model]
    facts = yaml.safe_dump({"library_name": "fedloom", "tags": tags}, sort_keys=False)
    return f"---\n{facts}---\n{exported.card.read_text(encoding='utf-8')}"
