// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func printed(t *testing.T, args ...string) string {
	t.Helper()
	var out bytes.Buffer
	app := newApp()
	app.Writer = &out
	if err := app.Run(append([]string{"gpuslice"}, args...)); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// The shells' harnesses take the completion's file and a command line. They print the completions of its last word, one per line,
// and "(files)" for files.
var shells = map[string]string{
	"bash": `
source "$1"
shift
compopt() { [[ $2 != default ]] || echo "(files)"; }
read -ra COMP_WORDS < <(printf '%s\n' "${1//=/ = }")
[[ $1 != *[\ =] ]] || COMP_WORDS+=("")
[[ $1 != *= ]] || COMP_WORDS=("${COMP_WORDS[@]:0:${#COMP_WORDS[@]}-1}")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_gpuslice
printf '%s\n' "${COMPREPLY[@]}"`,

	"fish": `
source $argv[1]
complete -C $argv[2] | string replace -r '\t.*' ''`,

	// Zsh completes only in its line editor, which needs a terminal. Replacements of compadd and _files print their arguments.
	"zsh": `
zmodload zsh/zpty
export ZDOTDIR=/nonexistent
zpty z zsh -f -i
zpty -w z "PS1=; fpath=(${1:h} \$fpath); autoload -Uz compinit; compinit -u -d \$HOME/dump; source $0.hook"
zpty -w z 'print re""ady'
zpty -r z line '*ready*'
zpty -n -w z "$2"$'\t'
while zpty -r z line; do print -rn -- $line; [[ $line != *END* ]] || break; done | tr -d '\r' | sed -n '/^BEGIN$/,/^END$/{/^BEGIN$/d;/^END$/d;p}'
zpty -d z`,
}

const zshHook = `unset zle_bracketed_paste; bindkey '^I' complete-word; ` +
	`hits-begin() { print; print BEGIN }; hits-end() { print END }; compprefuncs=(hits-begin); comppostfuncs=(hits-end); ` +
	`_files() { print '(files)' }; _path_files() { print '(files)' }; ` +
	`compadd() { local -a hits; if [[ ${@[1,(i)(-|--)]} == *-(O|A|D)\ * ]]; then builtin compadd "$@"; return; fi; ` +
	`builtin compadd -A hits "$@"; builtin compadd "$@"; (( $#hits )) && print -rl -- $hits; }`

// The file names that the shells expect.
var completionFiles = map[string]string{"bash": "gpuslice", "zsh": "_gpuslice", "fish": "gpuslice.fish"}

// shellHome returns a directory with the files that offered needs for a shell.
func shellHome(t *testing.T, shell string) string {
	t.Helper()
	dir := t.TempDir()
	for file, text := range map[string]string{
		completionFiles[shell]: printed(t, "completion", shell), "harness": shells[shell], "harness.hook": zshHook,
		// A replacement of the program, called for slices.
		"bin/gpuslice": "#!/bin/sh\n[ \"$1\" = ps ] && printf 'slice-1 web\\nslice-2 $(touch\\040made)\\nslice-3 `touch\\040made`\\nslice-3 \\n'\n[ \"$*\" = 'pool list --quiet' ] && printf 'pool-1\\n'\n" +
			"[ \"$1\" = limits ] && printf '0 GPU-1\\n1 GPU-2\\n MIG-7\\n'\n[ \"$*\" = 'lease list --quiet' ] && printf 'lease-1\\n'\n",
	} {
		path := filepath.Join(dir, file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func offered(t *testing.T, dir, shell, line string) []string {
	t.Helper()
	command := exec.Command(shell, filepath.Join(dir, "harness"), filepath.Join(dir, completionFiles[shell]), line)
	command.Env = append(os.Environ(), "PATH="+filepath.Join(dir, "bin")+":"+os.Getenv("PATH"), "HOME="+dir, "TERM=dumb")
	command.Dir = dir
	var stderr bytes.Buffer
	command.Stderr = &stderr
	out, err := command.Output()
	if err != nil && shell != "fish" { // fish fails without completions
		t.Fatalf("%s %q: %v: %s%s", shell, line, err, out, stderr.Bytes())
	}
	if stderr.Len() > 0 {
		t.Errorf("%s %q complains: %s", shell, line, stderr.Bytes())
	}
	words := strings.Fields(string(out))
	slices.Sort(words)
	return slices.Compact(words)
}

func TestShellsCompleteCommandsFlagsAndSlices(t *testing.T) {
	for shell := range shells {
		t.Run(shell, func(t *testing.T) {
			if _, err := exec.LookPath(shell); err != nil {
				t.Skipf("needs %s: test/deps.sh --ci", shell)
			}
			dir := shellHome(t, shell) // before t.Parallel: package cli does not support two apps at once
			t.Parallel()
			for _, row := range []struct{ line, want, not, but string }{ // but: a shell with another result
				{line: "gpuslice ", want: "run ps inspect events doctor completion version help", not: "man"},
				{line: "gpuslice ru", want: "run", not: "ps"},
				{line: "gpuslice --so", want: "--socket", not: "--vram"},
				{line: "gpuslice --socket ", want: "(files)", not: "run"},
				{line: "gpuslice --socket /x ru", want: "run"},
				{line: "gpuslice run --", want: "--vram --device --embedded --help", not: "--socket"},
				{line: "gpuslice run --vram 4G --emb", want: "--embedded"},
				{line: "gpuslice run --vram=4G --emb", want: "--embedded"},
				{line: "gpuslice run --vram ", not: "--device run"},
				{line: "gpuslice run --wait ", want: "forever", not: "--device run"},
				{line: "gpuslice run --mode ", want: "enforce record"},
				{line: "gpuslice run --device ", want: "0 1 MIG-7", not: "GPU-1"},
				{line: "gpuslice lease acquire --device M", want: "MIG-7", not: "0"},
				{line: "gpuslice set slice-1 --drop ", want: "0 1"},
				{line: "gpuslice lease drop ", want: "lease-1", not: "slice-1"},
				{line: "gpuslice lease renew le", want: "lease-1"},
				{line: "gpuslice recommend --format y", want: "yaml"},
				{line: "gpuslice ps --no", want: "--no-trunc"},
				{line: "gpuslice ps --f", want: "--format --filter"},
				{line: "gpuslice ps --filter ", want: "state= container= tenant=", not: "slice-1"},
				{line: "gpuslice ps --filter st", want: "state=", not: "container="},
				{line: "gpuslice ps --filter=st", want: "state=", but: "fish"},
				{line: "gpuslice ps --sort ", want: "used -used", not: "state="},
				{line: "gpuslice ps --sort -us", want: "-used", not: "used", but: "fish"},
				{line: "gpuslice devices -o ", want: "wide json yaml table", not: "slice-1"},
				{line: "gpuslice devices --output y", want: "yaml", not: "json"},
				{line: "gpuslice recommend --format ", want: "json table"},
				{line: "gpuslice events --filter ki", want: "kind="},
				{line: "gpuslice explain ", want: "slice-1 slice-2 slice-3 web"},
				{line: "gpuslice pool rm ", want: "pool-1", not: "POOL"},
				{line: "gpuslice pool ls -", want: "-q --quiet"},
				{line: "gpuslice events -", want: "-f --follow --since"},
				{line: "gpuslice inspect ", want: "slice-1 slice-2", not: "SLICE"},
				{line: "gpuslice set ", want: "slice-1 slice-2", not: "SLICE"},
				{line: "gpuslice set slice-1 --v", want: "--vram", not: "slice-1"},
				{line: "gpuslice pool ", want: "create list show set delete", not: "slice-1 pool-1"},
				{line: "gpuslice pool show ", want: "pool-1", not: "POOL slice-1"},
				{line: "gpuslice pool set po", want: "pool-1"},
				{line: "gpuslice pool create x --v", want: "--vram", not: "pool-1"},
				{line: "gpuslice renew sl", want: "slice-1 slice-2"},
				{line: "gpuslice events slice-1", want: "slice-1", not: "slice-2"},
				{line: "gpuslice completion ", want: "bash zsh fish"},
				{line: "gpuslice help d", want: "doctor"},
				{line: "gpuslice config ", want: "check"},
				{line: "gpuslice config check --config ", want: "(files)"},
				{line: "gpuslice install --dry-run p", want: "podman", not: "docker"},
				{line: "gpuslice run --vram 4G -- mkfif", want: "mkfifo"},
				{line: "gpuslice run --vram 4G mkfif", want: "mkfifo"},
			} {
				if shell == row.but {
					continue
				}
				got := offered(t, dir, shell, row.line)
				for _, want := range strings.Fields(row.want) {
					files := want == "(files)" && slices.Contains(got, "bin/") // fish lists them
					if !files && !slices.Contains(got, want) {
						t.Errorf("%q: %q is not offered: %q", row.line, want, got)
					}
				}
				for _, not := range strings.Fields(row.not) {
					if slices.Contains(got, not) {
						t.Errorf("%q: %q is offered: %q", row.line, not, got)
					}
				}
			}
			if _, err := os.Stat(filepath.Join(dir, "made")); err == nil {
				t.Error("a container's name was run")
			}
		})
	}
}

// The words after `gpuslice run --` are a user's command, which completion must not run.
func TestCompletingDoesNotRunTheCommand(t *testing.T) {
	made := filepath.Join(t.TempDir(), "made")
	for shell := range shells {
		if _, err := exec.LookPath(shell); err != nil {
			continue
		}
		offered(t, shellHome(t, shell), shell, "gpuslice run --vram 1G -- touch "+made+" ")
		if _, err := os.Stat(made); err == nil {
			t.Errorf("%s ran it", shell)
		}
	}
}

func TestTheManualPageHasEveryCommandAndFlag(t *testing.T) {
	page := strings.ReplaceAll(printed(t, "man", "--date", "2026-01-02"), `\-`, "-")
	for _, want := range []string{".Dd January 2, 2026\n", ".Dt GPUSLICE 1\n", ".It Ev GPUSLICE_SOCKET\n", ".Sh EXIT STATUS\n0 on"} {
		if !strings.Contains(page, want) {
			t.Errorf("no %q", want)
		}
	}
	for _, c := range newApp().Commands {
		if has := strings.Contains(page, "\n.Ss gpuslice "+c.Name+" "); has == c.Hidden && c.Name != "version" {
			t.Errorf("command %s: %v", c.Name, has)
		}
		for _, f := range c.Flags {
			if !c.Hidden && !strings.Contains(page, " Fl -"+f.Names()[0]) && !strings.Contains(page, "Fl "+f.Names()[0]) {
				t.Errorf("flag --%s of %s is missing", f.Names()[0], c.Name)
			}
		}
	}
	if _, err := exec.LookPath("mandoc"); err != nil {
		t.Skip("needs mandoc: test/deps.sh --ci")
	}
	lint := exec.Command("mandoc", "-T", "lint", "-W", "warning")
	lint.Stdin = strings.NewReader(printed(t, "man"))
	if out, err := lint.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("%v: %s", err, out)
	}
}
