# SPDX-License-Identifier: LGPL-2.1-or-later
#
# farfork.bash - completion for bash: commands and options are those that --help prints

_farfork_words() { # PATTERN [COMMAND]: what --help has
    "$1" ${3:+"$3"} --help 2> /dev/null | sed -n "$2"
}

_farfork() {
    local program=$1 cur=$2 command= words
    [[ ${program##*/} == vmclone ]] || command=${COMP_WORDS[1]}
    if [[ -n ${command+x} && ${program##*/} == farfork && $COMP_CWORD -eq 1 ]]; then
        words=$(_farfork_words "$program" '/^Commands:/,/^$/s/^  \([a-z][a-z]*\) .*/\1/p')
    elif [[ $cur == -* ]]; then
        words=$(_farfork_words "$program" 's/^  \(-.,\)\{0,1\} *\(--[a-z-]*\).*/\2/p' "$command")
    else
        return # the default: files
    fi
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$cur")
}

complete -o default -F _farfork farfork vmclone
