// SPDX-License-Identifier: Apache-2.0

package manual

import (
	"fmt"
	"io"
	"strings"
)

// bashHead parses the words before the one to complete. It needs only bash. For commands after `run --` it calls a function of
// the package bash-completion, if installed. bash splits "--vram=4G" into three words.
const bashHead = `# SPDX-License-Identifier: Apache-2.0
# bash completion for gpuslice: made by "gpuslice completion bash".

_gpuslice() {
	local cur=${COMP_WORDS[COMP_CWORD]} path=gpuslice i word value=
	local commands flags valued files argument words choices
	COMPREPLY=()
	_gpuslice_table
	for ((i = 1; i < COMP_CWORD; i++)); do
		word=${COMP_WORDS[i]} value=
		if [[ $word == -- ]]; then
			((i++))
			break
		elif [[ $word == -* ]]; then
			if [[ ${COMP_WORDS[i + 1]} == = ]]; then
				((i += 2))
				((i < COMP_CWORD)) || value=$word
			elif [[ " $valued " == *" $word "* ]]; then
				((i += 1))
				((i < COMP_CWORD)) || value=$word
			fi
		elif [[ " $commands " == *" $word "* ]]; then
			path+=" $word"
			_gpuslice_table
		elif [[ $argument == command ]]; then
			break
		fi
	done
	[[ $cur != = ]] || cur=
	if [[ $value ]]; then
		for word in "${choices[@]}"; do
			[[ ${word%%=*} != "$value" ]] || mapfile -t COMPREPLY < <(compgen -W "${word#*=}" -- "$cur")
		done
		[[ ${COMPREPLY[0]} != *= ]] || compopt -o nospace
		[[ " $files " != *" $value "* ]] || compopt -o default
	elif [[ $argument == command && (${COMP_WORDS[i - 1]} == -- || $cur != -*) ]]; then
		if ((i == COMP_CWORD)); then
			mapfile -t COMPREPLY < <(compgen -c -- "$cur")
		elif declare -F _command_offset >/dev/null; then
			_command_offset "$i"
		else
			compopt -o default
		fi
	elif [[ $cur == -* ]]; then
		mapfile -t COMPREPLY < <(compgen -W "$flags" -- "$cur")
	elif [[ $argument == slice ]]; then
		mapfile -t COMPREPLY < <(compgen -W "$(` + slicesCommand + `)" -- "$cur")
	elif [[ $argument == lease ]]; then
		mapfile -t COMPREPLY < <(compgen -W "$(` + leasesCommand + `)" -- "$cur")
	elif [[ $argument == pool ]]; then
		mapfile -t COMPREPLY < <(compgen -W "$(` + poolsCommand + `)" -- "$cur")
	else
		mapfile -t COMPREPLY < <(compgen -W "$commands $words" -- "$cur")
	fi
}

_gpuslice_table() {
	commands='' flags='' valued='' files='' argument='' words='' choices=()
	case $path in
`

// Bash writes the completion for bash.
func Bash(out io.Writer, root Command) error {
	var b strings.Builder
	b.WriteString(bashHead)
	kinds := map[argument]string{argSlice: "slice", argPool: "pool", argLease: "lease", argCommand: "command"}
	root.walk(func(c Command) {
		var names []string
		for _, sub := range c.Commands {
			names = append(names, sub.name())
		}
		kind, words := c.argument()
		fmt.Fprintf(&b, "\t'%s')\n", strings.Join(c.Path, " "))
		for _, set := range []struct{ name, value string }{
			{"commands", strings.Join(names, " ")},
			{"flags", strings.Join(c.flagNames(anyFlag), " ")},
			{"valued", strings.Join(c.flagNames(takesValue), " ")},
			{"files", strings.Join(c.flagNames(takesFile), " ")},
			{"argument", kinds[kind]},
			{"words", strings.Join(words, " ")},
		} {
			if set.value != "" {
				fmt.Fprintf(&b, "\t\t%s='%s'\n", set.name, set.value)
			}
		}
		for _, f := range c.Flags {
			for _, name := range f.Names {
				if f.Values != nil {
					fmt.Fprintf(&b, "\t\tchoices+=('%s=%s')\n", name, strings.Join(f.Values, " "))
				} else if command := f.dynamic(); command != "" { // compgen runs it
					fmt.Fprintf(&b, "\t\tchoices+=(%s)\n", single(name+"=$("+command+")"))
				}
			}
		}
		b.WriteString("\t\t;;\n")
	})
	b.WriteString("\tesac\n}\n\ncomplete -F _gpuslice gpuslice\n")
	_, err := io.WriteString(out, b.String())
	return err
}
