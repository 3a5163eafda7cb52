// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/gpuslice/gpuslice/test/needs"
)

func TestAFileIsReadWholeOrNotAtAll(t *testing.T) {
	for _, size := range []int{0, maxSize, maxSize + 1} {
		at := tree(t.TempDir())
		if err := os.WriteFile(filepath.Join(string(at), "file"), bytes.Repeat([]byte("x"), size), 0o600); err != nil {
			t.Fatal(err)
		}
		text, exists, err := at.read("/file")
		if size > maxSize {
			if err == nil {
				t.Errorf("%d bytes of %d are read", len(text), size)
			}
			continue
		}
		if err != nil || !exists || len(text) != size {
			t.Errorf("%d bytes of %d are read, exists: %v, %v", len(text), size, exists, err)
		}
	}
}

func TestAWriteThatFailsLeavesTheDirectoryAsItWas(t *testing.T) {
	at := tree(t.TempDir())
	if err := os.Mkdir(filepath.Join(string(at), "file"), 0o700); err != nil { // a directory, which write cannot replace
		t.Fatal(err)
	}
	if err := at.write("/file", []byte("text"), 0o600); err == nil {
		t.Error("a directory was replaced")
	}
	if left, err := os.ReadDir(string(at)); err != nil || len(left) != 1 || !left[0].IsDir() {
		t.Errorf("%v, %v", left, err)
	}
}

// No file of root is written, replaced or removed through a directory that another user owns or may write to.
func TestNoFileIsWrittenBelowAnotherUsersDirectory(t *testing.T) {
	needs.Root(t)
	const other = 65534
	for name, plant := range map[string]struct {
		before  string // as root, in the tree
		planted string // as the other user, there
	}{
		"a directory of another user": {"mkdir etc/docker; chown 65534 etc/docker", ""},
		"a link in it":                {"mkdir etc/docker; chown 65534 etc/docker", "ln -s ../private/file etc/docker/daemon.json"},
		"a directory replaced by a link": {
			"mkdir etc/docker; chown 65534 etc", "rmdir etc/docker; ln -s ../private etc/docker",
		},
		"a directory that all may write":       {"mkdir etc/docker; chmod 777 etc/docker", ""},
		"a directory that a group may write":   {"mkdir etc/docker; chgrp 65534 etc/docker; chmod 775 etc/docker", ""},
		"a link in a directory as /tmp":        {"mkdir etc/docker; chmod 1777 etc/docker", "ln -s ../../private/file etc/docker/daemon.json"},
		"a link of root to another user's one": {"mkdir theirs; chown 65534 theirs; ln -s ../theirs etc/docker", "ln -s ../private/file theirs/daemon.json"},
	} {
		t.Run(name, func(t *testing.T) {
			at := tree(t.TempDir())
			run := func(script string, uid uint32) {
				t.Helper()
				command := exec.Command("sh", "-ec", script)
				command.Dir = string(at)
				command.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
				if out, err := command.CombinedOutput(); err != nil {
					t.Fatalf("%s: %v\n%s", script, err, out)
				}
			}
			run("mkdir -m 755 etc private; echo root >private/file; echo root >private/daemon.json; chmod 600 private/*", 0)
			run(plant.before, 0)
			openTo(t, filepath.Dir(string(at)))
			run(plant.planted, other)
			if err := at.write("/etc/docker/daemon.json", []byte("{}"), 0o644); err == nil || !strings.Contains(err.Error(), "another file") {
				t.Errorf("write: %v", err)
			}
			if err := at.remove("/etc/docker/daemon.json", []string{"/etc/docker"}); err == nil {
				t.Error("removed")
			}
			for _, file := range []string{"private/file", "private/daemon.json"} {
				if text, err := os.ReadFile(filepath.Join(string(at), file)); string(text) != "root\n" {
					t.Errorf("%s: %q, %v", file, text, err)
				}
			}
			if fresh, _ := filepath.Glob(filepath.Join(string(at), "*", "*", "*.gpuslice-*")); len(fresh) > 0 {
				t.Errorf("left: %v", fresh)
			}
		})
	}
}

// openTo lets other users reach a test's directory.
func openTo(t *testing.T, dir string) {
	t.Helper()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
}

// Links of root, as /etc/docker on a volume, are followed; none leads out of the tree.
func TestLinksOfRootAreFollowedWithinTheTree(t *testing.T) {
	for link, target := range map[string]string{"etc/docker": "/data/docker", "etc": "../../../../data", "etc/docker/daemon.json": "../../data/real"} {
		at := tree(t.TempDir())
		for _, dir := range []string{"data/docker", filepath.Dir(link)} {
			if err := os.MkdirAll(filepath.Join(string(at), dir), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Symlink(target, filepath.Join(string(at), link)); err != nil {
			t.Fatal(err)
		}
		if err := at.write("/etc/docker/daemon.json", []byte("text"), 0o644); err != nil {
			t.Errorf("%s: %v", link, err)
		}
		if text, exists, err := at.read("/etc/docker/daemon.json"); string(text) != "text" || !exists || err != nil {
			t.Errorf("%s: %q, %v", link, text, err)
		}
		if info, err := os.Lstat(filepath.Join(string(at), link)); err != nil || info.Mode().Type() != os.ModeSymlink {
			t.Errorf("%s was replaced: %v", link, err)
		}
		var found []string
		_ = filepath.Walk(filepath.Join(string(at), "data"), func(file string, is os.FileInfo, _ error) error {
			if is.Mode().IsRegular() {
				found = append(found, file)
			}
			return nil
		})
		if len(found) != 1 {
			t.Errorf("%s: written to %v", link, found)
		}
	}
}
