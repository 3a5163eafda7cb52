// SPDX-License-Identifier: Apache-2.0

// Package needs tests what the suites say on a machine that lacks what they use.
package needs

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// asked is how a suite names what it needs.
var asked = regexp.MustCompile(`(?m)^(?:\.\./)?(?:test/)?deps\.sh --need (\S+) (.*)$`)

func TestASuiteNamesWhatIsMissingAndTheCommandThatInstallsIt(t *testing.T) {
	bin := t.TempDir() // all that this machine has, beside the directories of sbin
	for _, program := range []string{"bash", "dirname", "uname"} {
		path, err := exec.LookPath(program)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(path, filepath.Join(bin, program)); err != nil {
			t.Fatal(err)
		}
	}
	need := func(what ...string) (said string, code int) {
		cmd := exec.Command("../deps.sh", append([]string{"--need", "test-x"}, what...)...)
		cmd.Env = []string{"PATH=" + bin}
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		return string(out), cmd.ProcessState.ExitCode()
	}
	if said, code := need("xz", "uname", "pkg-config"); code != 1 || said != "test-x needs xz pkg-config, which this machine has not: sudo apt-get install xz-utils pkg-config\n" {
		t.Errorf("%d: %s", code, said)
	}
	if said, code := need("uname", "bash"); code != 0 || said != "" {
		t.Errorf("%d: %s", code, said)
	}
}

// A command that is not in the list would be taken for a package of that name.
func TestWhatEachSuiteNeedsIsInTheListOfPackages(t *testing.T) {
	list, err := os.ReadFile("../deps.sh")
	if err != nil {
		t.Fatal(err)
	}
	suites := 0
	for _, dir := range []string{"..", "../../kubernetes"} {
		err := filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
			if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".sh") {
				return err
			}
			text, err := os.ReadFile(path)
			for _, suite := range asked.FindAllStringSubmatch(string(text), -1) {
				suites++
				for what := range strings.FieldsSeq(suite[2]) {
					if !strings.Contains(string(list), "\t\""+what+" ") {
						t.Errorf("%s: %s needs %s, of which test/deps.sh does not know the package", path, suite[1], what)
					}
				}
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if suites < 4 {
		t.Errorf("%d suites say what they need", suites)
	}
}
