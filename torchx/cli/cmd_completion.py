"""``torchx completion``: print the completion script of a shell."""

from __future__ import annotations

import argparse

from torchx.cli.cmd_base import SubCommand

_BASH = r"""# torchx completion for bash. Put into ~/.bashrc:  eval "$(torchx completion bash)"
_torchx_complete() {
    local IFS=$'\n' reply
    # The line as typed: bash splits handles at their colons.
    reply=$(TORCHX_COMP_LINE="${COMP_LINE:0:$COMP_POINT}" TORCHX_COMP_BREAKS="$COMP_WORDBREAKS" \
        "${COMP_WORDS[0]}" __complete bash 2>/dev/null)
    COMPREPLY=($reply)
    case "${COMPREPLY[0]}" in
        *=|*/|*:) [ ${#COMPREPLY[@]} -eq 1 ] && compopt -o nospace 2>/dev/null ;;
    esac
}
complete -o default -F _torchx_complete torchx
"""
_ZSH = r"""#compdef torchx
# torchx completion for zsh. Put into ~/.zshrc:  eval "$(torchx completion zsh)"
_torchx() {
    local -a lines found
    local line
    lines=("${(@f)$("${(Q)words[1]}" __complete zsh -- "${(@Q)words[2,CURRENT]}" 2>/dev/null)}")
    for line in "${lines[@]}"; do
        [[ -n "$line" ]] && found+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}")
    done
    if (( ${#found} )); then
        _describe -V torchx found
    else
        _files
    fi
}
compdef _torchx torchx
"""
_FISH = r"""# torchx completion for fish. Put into ~/.config/fish/config.fish:  torchx completion fish | source
function __torchx_complete
    set -l words (commandline -opc) (commandline -ct)
    set -l found (torchx __complete fish -- $words[2..-1] 2>/dev/null)
    if test (count $found) -gt 0
        printf '%s\n' $found
    else
        __fish_complete_path (commandline -ct)
    end
end
complete -c torchx -f -a '(__torchx_complete)'
"""
SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}
"""Shell -> its script."""


class CmdCompletion(SubCommand):
    def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
        subparser.add_argument("shell", choices=list(SCRIPTS), metavar="SHELL", help="bash, zsh or fish")
        subparser.epilog = """\
To enable completion in new shells:

  bash   echo 'eval "$(torchx completion bash)"' >> ~/.bashrc
  zsh    echo 'eval "$(torchx completion zsh)"' >> ~/.zshrc
  fish   echo 'torchx completion fish | source' >> ~/.config/fish/config.fish"""

    def run(self, args: argparse.Namespace) -> None:
        print(SCRIPTS[args.shell], end="")
