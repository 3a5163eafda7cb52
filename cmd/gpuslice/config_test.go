// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/gpuslice/gpuslice/daemon/config"
	"github.com/gpuslice/gpuslice/test/badconfig"
	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

func TestAConfigurationIsCheckedAsTheDaemonReadsIt(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.toml")
	check := func(text string) (out, said string, code int) {
		must.Do(t, os.WriteFile(file, []byte(text), 0o600))
		return cliRun("config", "check", "--config", file)
	}
	shipped := string(must.Get(os.ReadFile("../../configs/config.toml"))(t))
	sections := regexp.MustCompile(`(?m)^\[`).Split(regexp.MustCompile(`(?m)^#([[a-z])`).ReplaceAllString(shipped, "$1"), -1)
	expect.True(t, len(sections) > 10)
	for i, section := range sections {
		text := shipped
		if i > 0 {
			text += "[" + section
		}
		if out, said, code := check(text); code != 0 || out != file+" is valid\n" || said != "" {
			t.Errorf("with this at its end: %s\n%d, %s%s", section, code, out, said)
		}
	}
	for text := range badconfig.Files {
		out, said, code := check(text)
		_, err := config.Load(file)
		if code != 1 || said != "" || !strings.Contains(err.Error(), strings.TrimSuffix(strings.SplitAfter(out, "\n")[0], "\n")) {
			t.Errorf("%q: %d, %q, %s, want %v", text, code, said, out, err)
		}
	}
	out, _, code := check("[enforcer]\nsokcet = \"/x\"\nnvml = \"on\"\n")
	expect.Equal(t, code, 1)
	expect.Equal(t, out, file+":2: there is no key enforcer.sokcet: did you mean enforcer.socket?\n"+file+":3: enforcer.nvml = \"on\": \"auto\" and \"off\" are accepted\n")
	if out, said, code := cliRun("config", "check", "--config", file+".not"); code != 1 || out != "" || !strings.Contains(said, file+".not: no such file") {
		t.Errorf("%d, %s%s", code, said, out)
	}
}
