// SPDX-License-Identifier: Apache-2.0

package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/gpuslice/gpuslice/cmd/gpuslice/internal/oci"
)

var (
	quoted      = regexp.MustCompile("`([^`\n]+)`")
	verb        = regexp.MustCompile(`%[-+# 0-9.]*[a-zA-Z]`)
	typed       = regexp.MustCompile(`(?m)^\$ (.*(?:\\\n.*)*)`)
	singleQuote = regexp.MustCompile(`'[^']*'`)
	assignment  = regexp.MustCompile(`^[A-Z_]+=`)

	// otherWord matches a key of the configuration, a flag's value, a header, or a command with parts known at run time only.
	otherWord = regexp.MustCompile(`^([a-z]+(_[a-z]+)*|[A-Z:]+|X --help|[a-z]+: .*)$`)

	// known are programs of other projects that messages and documents name.
	known = []string{
		"apt-get", "chmod", "dnf", "groupadd", "journalctl", "ldconfig", "make", "modprobe", "nerdctl", "nvidia-ctk", "nvidia-smi",
		"podman", "sh", "systemctl", "usermod", ".ci/run",
	}
	// forRoot matches commands that need root, or show more to root.
	forRoot = regexp.MustCompile(`^(apt-get|chmod|dnf|groupadd|journalctl|modprobe|usermod|make (un)?install|systemctl (start|restart|reload|enable|stop)|` +
		`nvidia-ctk .*--output=/|gpusliced|gpuslice-leased)\b`)
)

// literal evaluates text that a program prints; parts known at run time only are "X".
func literal(e ast.Expr) (text string, has bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		if e.Kind == token.STRING {
			text, err := strconv.Unquote(e.Value)
			return text, err == nil
		}
	case *ast.ParenExpr:
		return literal(e.X)
	case *ast.BinaryExpr:
		left, hasLeft := literal(e.X)
		right, hasRight := literal(e.Y)
		if e.Op == token.ADD && (hasLeft || hasRight) {
			return left + right, true
		}
	case *ast.CallExpr:
		name := ""
		switch f := e.Fun.(type) {
		case *ast.Ident:
			name = f.Name
		case *ast.SelectorExpr:
			name = f.Sel.Name
		}
		if name == "AsRoot" {
			words := []string{"sudo"}
			for _, arg := range e.Args {
				word, _ := literal(arg)
				words = append(words, word)
			}
			return "`" + strings.Join(words, " ") + "`", true
		}
	}
	return "X", false
}

func messagesOf(t *testing.T, path string) (texts []string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		e, ok := n.(ast.Expr)
		if !ok {
			return true
		}
		text, has := literal(e)
		if has {
			texts = append(texts, verb.ReplaceAllString(text, "X"))
		}
		return !has
	})
	return texts
}

// advised returns the commands that programs and documents print, by their places.
func advised(t *testing.T) (messages, documents map[string][]string) {
	t.Helper()
	const root = "../.."
	messages, documents = make(map[string][]string), make(map[string][]string)
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		name := strings.TrimPrefix(path, root+"/")
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (strings.HasPrefix(entry.Name(), ".") && path != root || slices.Contains([]string{"bin", "test", "tools", "node_modules", "testdata"}, entry.Name())):
			return fs.SkipDir
		case strings.HasSuffix(name, "_test.go"):
		case strings.HasSuffix(name, ".go"):
			for _, text := range messagesOf(t, path) {
				for _, found := range quoted.FindAllStringSubmatch(text, -1) {
					messages[name] = append(messages[name], found[1])
				}
			}
		case strings.HasSuffix(name, ".md") && name != "CHANGELOG.md":
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			for _, found := range append(typed.FindAllStringSubmatch(string(text), -1), quoted.FindAllStringSubmatch(string(text), -1)...) {
				if strings.Contains(found[1], "sudo ") {
					documents[name] = append(documents[name], found[1])
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return messages, documents
}

// typedBy returns the command without sudo and leading assignments.
func typedBy(command string) (rest string, sudo bool) {
	words := strings.Fields(command)
	for len(words) > 0 && (words[0] == "sudo" || assignment.MatchString(words[0])) {
		sudo = sudo || words[0] == "sudo"
		words = words[1:]
	}
	return strings.Join(words, " "), sudo
}

// fault returns the reason why a command fails as printed, or "".
func fault(command string, message bool, ours []string) string {
	if out, err := exec.Command("bash", "-n", "-c", command).CombinedOutput(); err != nil {
		return "bash: " + string(out)
	}
	for part := range strings.SplitSeq(command, "&&") {
		rest, sudo := typedBy(part)
		name, _, _ := strings.Cut(rest, " ")
		exists := slices.Contains(ours, name) || slices.Contains(known, name)
		switch {
		case message && !exists && (name == "X" || name == "" || !sudo && otherWord.MatchString(rest)):
		case sudo && strings.ContainsAny(singleQuote.ReplaceAllString(rest, ""), "<>|"):
			return "the shell of a user without rights opens the file, or runs what is behind the pipe: write sudo sh -c '…'"
		case !exists && (sudo || message):
			return "there is no program " + name
		case message && !sudo && forRoot.MatchString(rest) && !strings.HasSuffix(rest, " --help"):
			return "only root can do that: write sudo before it"
		}
	}
	return ""
}

// A printed command can be typed as it is.
func TestAdvisedCommandsParse(t *testing.T) {
	var ours []string
	for _, pattern := range []string{"../*", "../../kubernetes/cmd/*"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, dir := range found {
			ours = append(ours, filepath.Base(dir))
		}
	}
	messages, documents := advised(t)
	count := 0
	for where, commands := range messages {
		for _, command := range commands {
			count++
			if said := fault(command, true, ours); said != "" {
				t.Errorf("%s: `%s`: %s", where, command, said)
			}
			rest, _ := typedBy(command)
			words := strings.Fields(rest)
			if len(words) < 2 || words[0] != "gpuslice" || strings.HasPrefix(words[1], "-") || oci.IsVerb(words[1]) {
				continue
			}
			app := newApp()
			app.Writer, app.ErrWriter, app.Before = io.Discard, io.Discard, nil
			if app.Command(words[1]) == nil {
				t.Errorf("%s: `%s`: gpuslice has no command %s", where, command, words[1])
			}
		}
	}
	if count < 50 {
		t.Errorf("%d commands were found in messages", count)
	}
	count = 0
	for where, commands := range documents {
		for _, command := range commands {
			count++
			if said := fault(command, false, ours); said != "" {
				t.Errorf("%s: %s: %s", where, command, said)
			}
		}
	}
	if count < 20 {
		t.Errorf("%d commands were found in documents", count)
	}
}

func TestAdvisedCommandThatDoesNotParseIsFound(t *testing.T) {
	for command, want := range map[string]string{
		"sudo setsid gpusliced >>/var/log/gpusliced.log 2>&1 &": "sudo sh -c",
		"sudo gpuslice doctor | tee /var/log/x":                 "sudo sh -c",
		"systemctl restart gpusliced":                           "only root",
		"make install && true":                                  "only root",
		"sudo gpusliceddd":                                      "no program gpusliceddd",
		"nosuch --flag":                                         "no program nosuch",
		"gpuslice ps '":                                         "bash",
		"sudo sh -c 'gpusliced >>/var/log/gpusliced.log &'":     "",
		"default_vram":                                          "",
	} {
		if got := fault(command, true, []string{"gpuslice", "gpusliced"}); want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", command, got, want)
		}
	}
}
