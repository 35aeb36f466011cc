
# SPDX-License-Identifier: Apache-2.0
_tessera() {
    local -a commands operands options
    local command operand word
    _tessera_commands
    if (( CURRENT == 2 )); then
        _describe command commands
        return
    fi
    command=$words[2]
    _tessera_operands
    for word in $words[3,-1]; do
        if (( $operands[(Ie)$word] )); then
            operand=$word
            break
        fi
    done
    _tessera_options
    options+=('--help[as text]')
    if (( $#operands )); then
        options+=("*:operand:($operands)")
    fi
    shift words
    (( CURRENT-- ))
    _arguments $options
}

# zsh runs a file from $fpath as the function's body. A sourced file only registers the function.
if [[ $funcstack[1] == _tessera ]]; then
    _tessera "$@"
else
    compdef _tessera tessera
fi
