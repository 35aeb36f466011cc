
# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
_tessera() {
    COMPREPLY=()
    local current=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]}
    local command=${COMP_WORDS[1]} operand='' words value word
    if ((COMP_CWORD == 1)); then
        mapfile -t COMPREPLY < <(compgen -W "$(_tessera_commands) --help --version" -- "$current")
        return
    fi
    words=$(_tessera_operands "$command")
    for word in "${COMP_WORDS[@]:2}"; do
        case " $words " in *" $word "*) operand=$word && break ;; esac
    done
    # bash splits --option=value into three words.
    if [[ $current == = ]]; then
        current=''
    elif [[ $before == = ]]; then
        before=${COMP_WORDS[COMP_CWORD - 2]}
    fi
    value=$(_tessera_value "$command" "$operand" "$before")
    case $value in
    @file)
        compopt -o filenames 2>/dev/null
        mapfile -t COMPREPLY < <(compgen -f -- "$current")
        ;;
    @folder)
        compopt -o filenames 2>/dev/null
        mapfile -t COMPREPLY < <(compgen -d -- "$current")
        ;;
    @free) ;;
    '')
        [[ $current != -* ]] || words="$(_tessera_options "$command" "$operand") --help"
        mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
        ;;
    *) mapfile -t COMPREPLY < <(compgen -W "$value" -- "$current") ;;
    esac
}
complete -F _tessera tessera
