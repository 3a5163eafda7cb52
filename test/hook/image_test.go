// SPDX-License-Identifier: Apache-2.0

package hook_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

// Each image fails with one message, and nothing changes.
func TestAHostileImageIsRefused(t *testing.T) {
	for _, c := range []struct {
		name string
		make func(t *testing.T, b *bundle)
		says string
	}{
		{"PreloadIsALinkOut", func(t *testing.T, b *bundle) {
			// On the host, not in the root filesystem: the hook must neither bind on it nor create it.
			outside := filepath.Join(b.dir, "outside")
			write(t, outside, "the host's\n")
			symlink(t, "../../../../../../../.."+outside, b.rootfs("etc", "ld.so.preload"))
		}, "/etc/ld.so.preload in the image is a symbolic link to nothing"},
		{"PreloadIsALinkToItself", func(t *testing.T, b *bundle) {
			symlink(t, "ld.so.preload", b.rootfs("etc", "ld.so.preload"))
		}, "/etc/ld.so.preload in the image: too many levels of symbolic links"},
		{"PreloadIsAMagicLink", func(t *testing.T, b *bundle) {
			symlink(t, "/proc/self/root/etc/passwd", b.rootfs("etc", "ld.so.preload"))
		}, "/etc/ld.so.preload in the container leads through a mount"},
		{"PreloadIsAFIFO", func(t *testing.T, b *bundle) {
			must.Do(t, syscall.Mkfifo(b.rootfs("etc", "ld.so.preload"), 0o644))
		}, "/etc/ld.so.preload in the image is a FIFO"},
		{"PreloadIsADirectory", func(t *testing.T, b *bundle) {
			mkdir(t, b.rootfs("etc", "ld.so.preload"))
		}, "/etc/ld.so.preload in the image is a directory"},
		{"PreloadIsADevice", func(t *testing.T, b *bundle) {
			must.Do(t, syscall.Mknod(b.rootfs("etc", "ld.so.preload"), syscall.S_IFCHR|0o666, 1<<8|5)) // /dev/zero
		}, "/etc/ld.so.preload in the image is a device"},
		{"PreloadIsHuge", func(t *testing.T, b *bundle) {
			write(t, b.rootfs("etc", "ld.so.preload"), "")
			must.Do(t, os.Truncate(b.rootfs("etc", "ld.so.preload"), 1<<30))
		}, "/etc/ld.so.preload in the image is longer than 64 KiB"},
		{"EtcIsALinkToNothing", func(t *testing.T, b *bundle) {
			must.Do(t, os.Remove(b.rootfs("etc")))
			symlink(t, "/nowhere", b.rootfs("etc"))
		}, "/etc in the image is a symbolic link to nothing"},
		{"EtcIsAFile", func(t *testing.T, b *bundle) {
			must.Do(t, os.Remove(b.rootfs("etc")))
			write(t, b.rootfs("etc"), "")
		}, "/etc in the image: not a directory"},
		{"OurPlaceIsALink", func(t *testing.T, b *bundle) {
			symlink(t, "/etc", b.rootfs(".gpuslice"))
		}, "/.gpuslice in the image is a symbolic link"},
		{"OurPlaceIsAFile", func(t *testing.T, b *bundle) {
			write(t, b.rootfs(".gpuslice"), "mine")
		}, "/.gpuslice in the image is a regular file"},
		{"OurPlaceIsAVolume", func(t *testing.T, b *bundle) {
			mkdir(t, b.rootfs(".gpuslice"))
			b.mount(t, volume(t, b), "/.gpuslice")
		}, "something is mounted on /.gpuslice"},
		{"EtcIsAVolume", func(t *testing.T, b *bundle) {
			b.mount(t, volume(t, b), "/etc")
		}, onVolume("/etc")},
		{"EtcIsAVolumeWithPreload", func(t *testing.T, b *bundle) {
			b.mount(t, volume(t, b, "ld.so.preload"), "/etc")
		}, onVolume("/etc")},
		{"EtcIsASharedVolume", func(t *testing.T, b *bundle) {
			shared := volume(t, b, "ld.so.preload")
			shareMount(t, shared)
			b.config["linux"].(object)["rootfsPropagation"] = "shared"
			b.mount(t, shared, "/etc", "rshared")
		}, onVolume("/etc")},
		{"EtcIsATmpfs", func(t *testing.T, b *bundle) {
			b.tmpfs(t, "/etc")
		}, onVolume("/etc")},
		{"EtcIsATmpfsWithACopy", func(t *testing.T, b *bundle) {
			write(t, b.rootfs("etc", "ld.so.preload"), "")
			b.tmpfs(t, "/etc", "tmpcopyup")
		}, onVolume("/etc")},
		{"EtcIsALinkIntoAVolume", func(t *testing.T, b *bundle) {
			must.Do(t, os.Remove(b.rootfs("etc")))
			symlink(t, "srv/etc", b.rootfs("etc"))
			mkdir(t, b.rootfs("srv"))
			b.mount(t, volume(t, b, "etc/ld.so.preload"), "/srv")
		}, onVolume("/srv")},
		{"EtcIsALinkToAFileInAVolume", func(t *testing.T, b *bundle) {
			must.Do(t, os.Remove(b.rootfs("etc")))
			symlink(t, "srv/etc", b.rootfs("etc"))
			mkdir(t, b.rootfs("srv"))
			b.mount(t, volume(t, b, "etc"), "/srv")
		}, "/etc/ld.so.preload in the container: not a directory"},
		{"EtcIsALinkThroughAVolume", func(t *testing.T, b *bundle) {
			// The volume's owner can change where the link leads.
			must.Do(t, os.Rename(b.rootfs("etc"), b.rootfs("etc.d")))
			symlink(t, "srv/back", b.rootfs("etc"))
			mkdir(t, b.rootfs("srv"))
			v := volume(t, b)
			symlink(t, "/etc.d", filepath.Join(v, "back"))
			b.mount(t, v, "/srv")
		}, "/etc/ld.so.preload in the container leads through a mount"},
		{"PreloadIsAVolume", func(t *testing.T, b *bundle) {
			write(t, b.rootfs("etc", "ld.so.preload"), "")
			b.mount(t, filepath.Join(volume(t, b, "file"), "file"), "/etc/ld.so.preload")
		}, onVolume("/etc/ld.so.preload")},
		{"PreloadIsALinkIntoAVolume", func(t *testing.T, b *bundle) {
			symlink(t, "/srv/preload", b.rootfs("etc", "ld.so.preload"))
			mkdir(t, b.rootfs("srv"))
			b.mount(t, volume(t, b, "preload"), "/srv")
		}, onVolume("/srv")},
		{"EtcIsClosedToOtherUsers", func(t *testing.T, b *bundle) {
			must.Do(t, os.Chmod(b.rootfs("etc"), 0o700))
		}, "/etc in the image has the mode 0700"},
		{"PreloadIsMasked", func(t *testing.T, b *bundle) {
			b.linux(t, "maskedPaths", "/proc/kcore", "/etc/ld.so.preload")
		}, `the masked path "/etc/ld.so.preload" hides`},
		{"DirectoryIsMasked", func(t *testing.T, b *bundle) {
			b.linux(t, "maskedPaths", ".gpuslice/")
		}, `the masked path ".gpuslice/" hides`},
		{"RootIsMasked", func(t *testing.T, b *bundle) {
			b.linux(t, "maskedPaths", "/etc/..")
		}, `the masked path "/etc/.." hides`},
		{"AWayOfLinksIsMasked", func(t *testing.T, b *bundle) {
			must.Do(t, os.Rename(b.rootfs("etc"), b.rootfs("etc.d")))
			symlink(t, "/srv/way", b.rootfs("etc"))
			mkdir(t, b.rootfs("srv"))
			symlink(t, "../etc.d", b.rootfs("srv", "way"))
			b.linux(t, "maskedPaths", "/srv")
		}, `the masked path "/srv" hides`},
		{"MaskedByALinkIntoAProcess", func(t *testing.T, b *bundle) {
			symlink(t, "proc/self/root/etc", b.rootfs("link"))
			b.linux(t, "maskedPaths", "/link/ld.so.preload")
		}, "it leads through /proc to a process"},
		{"MaskedByAProcessOfLater", func(t *testing.T, b *bundle) {
			b.linux(t, "maskedPaths", "/proc/4000000/root/etc/ld.so.preload")
		}, "it leads through /proc to a process"},
		{"FilterCannotBeEvaluated", func(t *testing.T, b *bundle) {
			b.config["annotations"] = map[string]string{"gpuslice.vram": "4G", "run.oci.seccomp_bpf_data": "BgAAAAAA/38="} // allows all
			b.save(t)
		}, "the annotation run.oci.seccomp_bpf_data is not accepted"},
		{"MaskedInAVolume", func(t *testing.T, b *bundle) {
			// The path does not exist yet, and the volume's owner can create a link there.
			mkdir(t, b.rootfs("srv"))
			b.mount(t, volume(t, b), "/srv")
			b.linux(t, "maskedPaths", "/srv/none")
		}, "it leads into a volume, where others can make a link"},
		{"MaskedByALinkToItself", func(t *testing.T, b *bundle) {
			symlink(t, "link", b.rootfs("link"))
			b.linux(t, "maskedPaths", "/link")
		}, "too many levels of symbolic links"},
		{"RootIsReadOnly", func(t *testing.T, b *bundle) {
			readOnly(t, b)
		}, "the root filesystem is read-only and has no /etc/ld.so.preload to bind on: add an empty directory /.gpuslice"},
	} {
		t.Run(c.name, func(t *testing.T) {
			forEachRuntime(t, func(t *testing.T, r runtime) {
				e := startEnforcer(t)
				b := newBundle(t, id(t), fourGiB, nil)
				c.make(t, b)
				container := newContainer(t, r, id(t), b)
				if r.name == "runc" {
					b.config["hooks"] = hooks(t, e, "prestart")
					b.save(t)
				} else {
					// crun 1.8.1 discards the hook's output; gpuslice-runtime shows it.
					ours(t, e, container)
				}
				clean := nothingLeft(t, e, b, id(t))
				config := read(t, filepath.Join(b.dir, "config.json"))
				out, err := container.create()
				must.True(t, err != nil, "it was created")
				checkSentence(t, out, c.says)
				container.run("delete", "--force", container.id)
				write(t, filepath.Join(b.dir, "config.json"), config) // the hooks may remain
				clean()
			})
		})
	}
}

func volume(t *testing.T, b *bundle, files ...string) string {
	t.Helper()
	dir := filepath.Join(b.dir, "volume")
	mkdir(t, dir)
	for _, file := range files {
		path := filepath.Join(dir, file)
		mkdir(t, filepath.Dir(path))
		write(t, path, "")
	}
	return dir
}

func onVolume(where string) string {
	return "/etc/ld.so.preload in the container is on what is mounted at " + where + ": "
}

func checkSentence(t *testing.T, out, says string) {
	t.Helper()
	if !strings.Contains(out, "gpuslice: ") || !strings.Contains(out, says) {
		t.Errorf("the runtime shows\n%s\nwhich does not say %q", out, says)
	}
}

// Odd but harmless images work and are restored.
func TestAnUnusualImageIsTaken(t *testing.T) {
	for _, c := range []struct {
		name    string
		make    func(t *testing.T, b *bundle)
		preload string
	}{
		{"PreloadHasEntries", func(t *testing.T, b *bundle) {
			write(t, b.rootfs("etc", "ld.so.preload"), "/lib/a.so:/lib/b.so # two\n/lib/c.so")
		}, preloadLine + "/lib/a.so:/lib/b.so # two\n/lib/c.so"},
		{"PreloadIsEmpty", func(t *testing.T, b *bundle) {
			write(t, b.rootfs("etc", "ld.so.preload"), "")
		}, preloadLine},
		{"PreloadIsALinkInside", func(t *testing.T, b *bundle) {
			mkdir(t, b.rootfs("opt"))
			write(t, b.rootfs("opt", "preload"), "/lib/a.so\n")
			symlink(t, "../../../opt/preload", b.rootfs("etc", "ld.so.preload"))
		}, preloadLine + "/lib/a.so\n"},
		{"EtcIsALinkInside", func(t *testing.T, b *bundle) {
			must.Do(t, os.Rename(b.rootfs("etc"), b.rootfs("etc.d")))
			symlink(t, "/etc.d", b.rootfs("etc"))
		}, preloadLine},
		{"NoEtc", func(t *testing.T, b *bundle) {
			must.Do(t, os.Remove(b.rootfs("etc")))
		}, preloadLine},
		{"ReadOnlyByConfiguration", func(t *testing.T, b *bundle) {
			b.config["root"].(object)["readonly"] = true
			b.save(t)
		}, preloadLine},
		{"ReadOnlyWithPlaces", func(t *testing.T, b *bundle) {
			write(t, b.rootfs("etc", "ld.so.preload"), "")
			mkdir(t, b.rootfs(".gpuslice"))
			readOnly(t, b)
		}, preloadLine},
		{"OtherPathsAreMasked", func(t *testing.T, b *bundle) {
			symlink(t, "/etc/none", b.rootfs("dangling"))
			write(t, b.rootfs("etc", "passwd"), "")
			b.linux(t, "maskedPaths", "/proc/kcore", "/proc/none", "/none/4", "/dangling", "/etc/passwd", "/tmp", "/srv")
			mkdir(t, b.rootfs("srv"))
			b.mount(t, volume(t, b), "/srv")
		}, preloadLine},
		{"ReadOnlyPaths", func(t *testing.T, b *bundle) {
			b.linux(t, "readonlyPaths", "/etc/ld.so.preload", "/.gpuslice", "/etc")
		}, preloadLine},
		{"TmpfsOverRun", func(t *testing.T, b *bundle) {
			mkdir(t, b.rootfs("run"))
			b.tmpfs(t, "/run")
		}, preloadLine},
	} {
		t.Run(c.name, func(t *testing.T) {
			forEachRuntime(t, func(t *testing.T, r runtime) {
				e := startEnforcer(t)
				b := newBundle(t, id(t), fourGiB, hooks(t, e, "prestart"))
				c.make(t, b)
				clean := nothingLeft(t, e, b, id(t))
				container := newContainer(t, r, id(t), b)
				container.start()
				expect.Equal(t, container.exec("cat", "/etc/ld.so.preload"), c.preload, "ld.so.preload")
				expect.Equal(t, container.exec("cat", "/.gpuslice/marker"), container.id, "/.gpuslice")
				container.remove()
				clean()
			})
		})
	}
}

// Only paths that the hook created and that are still empty are removed.
func TestFilesOfTheContainerAreNotRemoved(t *testing.T) {
	requires(t, "runc")
	e := startEnforcer(t)
	b := newBundle(t, id(t), fourGiB, hooks(t, e, "prestart"))
	c := newContainer(t, runc, id(t), b)
	c.start()
	// A container with CAP_SYS_ADMIN can do this after it unmounts the interceptor.
	write(t, b.rootfs("etc", "new"), "")
	must.Do(t, os.Rename(b.rootfs("etc", "new"), b.rootfs("etc", "ld.so.preload")))
	write(t, b.rootfs(".gpuslice", "mine"), "mine")
	c.remove()
	for _, path := range []string{b.rootfs("etc", "ld.so.preload"), b.rootfs(".gpuslice", "mine")} {
		expect.NoError(t, must.Err(os.Stat(path)))
	}
}

func TestEveryProcessOfAGlibcContainerLoadsTheInterceptor(t *testing.T) {
	requires(t, "runc", "cc")
	e := startEnforcer(t)
	source := filepath.Join(e.dir, "x.c")
	write(t, source, `#include <unistd.h>
__attribute__((constructor)) static void hello(void) { write(2, "loaded ", 7); }`)
	must.Output(exec.Command("cc", "-shared", "-fPIC", "-o", e.library, source).CombinedOutput())(t, "cc")
	b := newBundle(t, id(t), fourGiB, hooks(t, e, "prestart"))
	for _, dir := range []string{"usr", "lib", "lib64"} {
		if info, err := os.Stat("/" + dir); err == nil && info.IsDir() {
			mkdir(t, b.rootfs(dir))
			b.mount(t, "/"+dir, "/"+dir, "ro")
		}
	}
	c := newContainer(t, runc, id(t), b)
	c.start()
	// Two programs, the second with an empty environment.
	expect.Equal(t, strings.Count(c.exec("/usr/bin/env", "-i", "/usr/bin/expr", "1"), "loaded "), 2, "env and expr have loaded it")
	c.remove()
}

// readOnly mounts the root filesystem as a read-only tmpfs. crun would bind a read-only bind mount again, writable.
func readOnly(t testing.TB, b *bundle) {
	t.Helper()
	tmpfs := t.TempDir()
	for _, command := range [][]string{
		{"mount", "-t", "tmpfs", "tmpfs", tmpfs},
		{"cp", "-a", b.rootfs() + "/.", tmpfs},
		{"mount", "--bind", tmpfs, b.rootfs()},
		{"mount", "-o", "remount,ro", tmpfs},
	} {
		must.Output(exec.Command(command[0], command[1:]...).CombinedOutput())(t, command)
	}
	t.Cleanup(func() { exec.Command("umount", b.rootfs(), tmpfs).Run() })
}

func symlink(t testing.TB, to, path string) {
	t.Helper()
	must.Do(t, os.Symlink(to, path))
}

func read(t testing.TB, path string) string {
	t.Helper()
	text := must.Get(os.ReadFile(path))(t)
	return string(text)
}

// Files of the image must not affect the quota, even at paths that are read elsewhere.
func TestImageFilesCannotSetTheQuota(t *testing.T) {
	forEachRuntime(t, func(t *testing.T, r runtime) {
		e := startEnforcer(t)
		b := newBundle(t, id(t), fourGiB, nil)
		config := must.Get(json.Marshal(object{"annotations": object{"gpuslice.vram": "40G", "gpuslice.mode": "record"}}))(t)
		mkdir(t, b.rootfs("etc", "gpuslice"))
		mkdir(t, b.rootfs("run", "gpuslice"))
		write(t, b.rootfs("etc", "gpuslice", "config.toml"), "[runtime]\nmissing = \"pass\"\ndefault_vram = \"40G\"\nallow_env = true\n")
		for _, name := range []string{b.rootfs("config.json"), b.rootfs("etc", "config.json"), b.rootfs("run", "gpuslice", "config.json")} {
			write(t, name, string(config))
		}
		b.config["process"].(object)["env"] = []string{"PATH=/bin", "GPUSLICE_CONFIG=/etc/gpuslice/config.toml", "GPUSLICE_VRAM=40G", "GPUSLICE_MODE=record"}
		b.save(t)
		c := newContainer(t, r, id(t), b)
		ours(t, e, c)
		c.start()
		if len(e.registered) != 1 || len(e.registered[0].Quotas) != 1 || e.registered[0].Quotas[0].Bytes != 4<<30 || e.registered[0].Mode == "record" {
			t.Errorf("registered %+v", e.registered)
		}
		c.remove()
	})
}
