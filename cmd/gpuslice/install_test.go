// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpuslice/gpuslice/cmd/gpuslice/internal/engines"
)

func cliRun(args ...string) (stdout, stderr string, code int) {
	var out, errOut bytes.Buffer
	app := newApp()
	app.Writer, app.ErrWriter = &out, &errOut
	err := app.Run(append([]string{"gpuslice"}, args...))
	if err != nil {
		code = exitCode(err, 1)
		errOut.WriteString(err.Error())
	}
	return out.String(), errOut.String(), code
}

func imageWith(t *testing.T, daemon string) string {
	t.Helper()
	root := t.TempDir()
	if err := errors.Join(os.MkdirAll(filepath.Join(root, "etc/docker"), 0o755),
		os.WriteFile(filepath.Join(root, "etc/docker/daemon.json"), []byte(daemon), 0o644)); err != nil {
		t.Fatal(err)
	}
	return root
}

func TestADryRunPrintsNothingButTheDiffToStandardOutput(t *testing.T) {
	root := imageWith(t, "{}\n")
	out, said, code := cliRun("install", "docker", "--dry-run", "--root", root) // flags after the engine, as people write them
	if code != 0 || !strings.HasPrefix(out, "--- /etc/docker/daemon.json\n+++ /etc/docker/daemon.json\n@@ -1 +1,7 @@\n-{}\n+{\n") {
		t.Errorf("%d: %s", code, out)
	}
	for _, want := range []string{"docker: /etc/docker/daemon.json would be edited\n", "docker: warning: /usr/local/bin/gpuslice-runtime is not there", "docker: takes effect after `systemctl reload docker`\n"} {
		if !strings.Contains(said, want) {
			t.Errorf("%q is not in %q", want, said)
		}
	}
	for line, want := range map[string]string{"--dry-run": `"dry_run": true`, "--dry-run=false": `"dry_run": false`} {
		if out, _, code := cliRun("install", "docker", "--json", line, "--root", imageWith(t, "{}\n")); code != 0 || !strings.Contains(out, want) {
			t.Errorf("%s: %d, %s", line, code, out)
		}
	}
	if text, err := os.ReadFile(filepath.Join(root, "etc/docker/daemon.json")); err != nil || string(text) != "{}\n" {
		t.Errorf("%q, %v", text, err)
	}
}

func TestInstallContinuesAfterAFailedEngine(t *testing.T) {
	root := imageWith(t, "{")
	if err := os.MkdirAll(filepath.Join(root, "etc/containers/containers.conf.d"), 0o755); err != nil {
		t.Fatal(err)
	}
	out, said, code := cliRun("install", "--root="+root, "all", "--json")
	var results []engines.Result
	if err := json.Unmarshal([]byte(out), &results); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if code != 1 || said != "" || len(results) != 4 {
		t.Errorf("%d, %q, %+v", code, said, results)
	}
	for i, want := range []engines.State{engines.Failed, engines.LeftOut, engines.LeftOut, engines.Done} {
		if results[i].State != want {
			t.Errorf("%+v, want %q", results[i], want)
		}
	}
	out, said, code = cliRun("install", "--root="+root, "all")
	if code != 1 || said != "gpuslice: docker: /etc/docker/daemon.json: line 1: the object has no end\npodman: warning: /usr/local/bin/gpuslice-runtime is not there: install gpuslice before you use the runtime\n" {
		t.Errorf("%d: %q", code, said)
	}
	if !strings.Contains(out, "containerd: left out: neither containerd nor /etc/containerd/config.toml is on this machine\n") || !strings.Contains(out, "podman: nothing to do\n") {
		t.Error(out)
	}
	if out, said, code = cliRun("uninstall", "all", "--root", root); code != 0 || !strings.Contains(out, "containers.conf.d/gpuslice.conf was removed\n") {
		t.Errorf("%d: %q, %q", code, out, said)
	}
}

func TestWrongCommandLinesOfInstallAreRefused(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"install", "which engine? docker, containerd, crio, podman or all"},
		{"install rkt", `there is no engine "rkt"`},
		{"install docker all", `there is no engine "all"`},
		{"install docker --nope", "there is no flag --nope"},
		{"install docker --root", "--root needs a value"},
		{"install docker --dry-run=maybe", `invalid value "maybe"`},
		{"install all --config /x", "--config names the file of one engine"},
		{"install docker --root /x --config y", "an absolute path beneath it is accepted"},
		{"install docker --hooks", "--hooks is for podman"},
		{"uninstall docker --force", "there is no flag --force"},
	} {
		if _, said, code := cliRun(strings.Fields(c.args)...); code != 2 || !strings.Contains(said, c.want) {
			t.Errorf("%s: %d, %q", c.args, code, said)
		}
	}
}

func TestInstallWarnsOfADockerWithoutAnnotations(t *testing.T) {
	bin, file := t.TempDir(), filepath.Join(t.TempDir(), "daemon.json")
	for program, script := range map[string]string{
		"dockerd": "echo 'Docker version 20.10.24+dfsg1, build x'",
		"docker":  "echo 1.41; echo 'Cannot connect to the Docker daemon' >&2; exit 1",
	} {
		if err := os.WriteFile(filepath.Join(bin, program), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	const want = "Docker 20.10.24+dfsg1 has no --annotation, which 24 has: -e GPUSLICE_VRAM=4G stands for it"
	if _, said, code := cliRun("install", "docker", "--dry-run", "--config", file); code != 0 || !strings.Contains(said, want) {
		t.Errorf("%d: %s", code, said)
	}
	// The programs of this machine are irrelevant for an image.
	if _, said, code := cliRun("install", "docker", "--dry-run", "--root", t.TempDir()); code != 0 || strings.Contains(said, "--annotation") {
		t.Errorf("%d: %s", code, said)
	}
}
