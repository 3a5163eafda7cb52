// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestAnEngineThatHasNotReadItsConfigurationIsStale(t *testing.T) {
	boot := time.Now().Add(-time.Hour).Truncate(time.Second)
	began := boot.Add(1000 * time.Second)
	mine, others := "containerd\x00--log-level\x00info\x00", "containerd\x00--config\x00/var/run/docker/containerd/containerd.toml\x00"
	known := `{"gpuslice": {"path": "/x"}, "runc": {"path": "runc"}}`
	for _, row := range []struct {
		name, engine, cmdline, docker string
		changed                       time.Time
		want                          string
	}{
		{name: "changed after the start", engine: "containerd", cmdline: mine, changed: began.Add(time.Minute), want: "systemctl restart containerd"},
		{name: "started after the change", engine: "containerd", cmdline: mine, changed: began.Add(-time.Minute)},
		{name: "does not run", engine: "containerd", changed: began.Add(time.Minute)},
		{name: "Docker's own containerd runs", engine: "containerd", cmdline: others, changed: began.Add(time.Minute)},
		{name: "the file is named", engine: "containerd", cmdline: "containerd\x00--config=" + containerdFile + "\x00", changed: began.Add(time.Minute), want: "systemctl restart containerd"},
		{name: "a drop-in for CRI-O", engine: "crio", cmdline: "crio\x00", changed: began.Add(time.Minute), want: "systemctl restart crio"},
		{name: "CRI-O started since", engine: "crio", cmdline: "crio\x00", changed: began.Add(-time.Minute)},
		{name: "Docker knows it", engine: "docker", docker: known},
		{name: "Docker does not know it", engine: "docker", docker: `{"runc": {"path": "runc"}}`, want: "systemctl reload docker"},
		{name: "Docker does not run", engine: "docker"},
		{name: "Docker says something else", engine: "docker", docker: "null"},
		{name: "Podman reads it each time", engine: "podman"},
	} {
		t.Run(row.name, func(t *testing.T) {
			h := Host{Root: t.TempDir()}
			put := func(file, text string) {
				t.Helper()
				path := filepath.Join(h.Root, file)
				if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
					t.Fatal(err)
				}
			}
			put("proc/stat", "cpu 1 2 3\nbtime "+timeText(boot)+"\n")
			if row.cmdline != "" {
				put("proc/77/comm", row.engine+"\n")
				put("proc/77/cmdline", row.cmdline)
				put("proc/77/stat", "77 (a ) name) S 1 77 77 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 9 0 100000 1 2\n")
			}
			put(containerdFile, "")
			put(crioDropIn, "")
			for _, path := range []string{containerdFile, crioDropIn, filepath.Dir(crioDropIn)} {
				if err := os.Chtimes(filepath.Join(h.Root, path), row.changed, row.changed); err != nil {
					t.Fatal(err)
				}
			}
			got, err := Stale(h, row.engine, func(string, ...string) ([]byte, error) {
				if row.docker == "" {
					return nil, errors.New("cannot connect")
				}
				return []byte(row.docker), nil
			})
			if err != nil || got != row.want {
				t.Errorf("%q, %v; want %q", got, err, row.want)
			}
		})
	}
}

func TestTheStartOfAProcessIsReadFromThisHostsProc(t *testing.T) {
	stat, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		t.Fatal(err)
	}
	began, err := startOf("/proc", string(stat))
	if age := time.Since(began); err != nil || age < -2*time.Second || age > time.Hour {
		t.Errorf("%v, %v", age, err)
	}
}

func timeText(at time.Time) string { return fmt.Sprint(at.Unix()) }
