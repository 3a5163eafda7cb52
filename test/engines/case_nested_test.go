//go:build engines

// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"fmt"
	"os"

	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/testhost"
)

func isNewDocker(e engine) string {
	if d, ok := e.(*docker); ok && !d.old {
		return ""
	}
	return "Docker in Docker is tried with Docker 29"
}

const innerDocker = `
mkdir /inner
mount -t tmpfs none /inner
cat >/inner/containerd.toml <<TOML
version = 2
root = "/inner/containerd/root"
state = "/inner/containerd/state"
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime", "io.containerd.nri.v1.nri"]
[grpc]
address = "/inner/containerd.sock"
TOML
containerd --config /inner/containerd.toml >/inner/containerd.log 2>&1 </dev/null &
dockerd --host unix:///inner/sock --containerd /inner/containerd.sock --data-root /inner/data --exec-root /inner/exec --pidfile /inner/pid \
	--add-runtime gpuslice=$GPUSLICE_BIN/gpuslice-runtime --userland-proxy=false --bridge none --iptables=false --ip6tables=false \
	--exec-opt native.cgroupdriver=cgroupfs >/inner/dockerd.log 2>&1 </dev/null &
for i in $(seq 200); do
	if docker version >/dev/null 2>&1; then
		exec docker load --quiet --input /image.tar
	fi
	sleep 0.1
done
cat /inner/*.log
exit 1
`

const innerDaemon = `
mkdir -p /inner/gpuslice
cat >/inner/gpuslice.toml <<TOML
[enforcer]
socket = "/inner/gpuslice/gpuslice.sock"
run_dir = "/inner/gpuslice"
state_dir = "/inner/state"
library = "$GPUSLICE_BIN/libgpuslice.so"
TOML
gpusliced --config /inner/gpuslice.toml >/inner/gpusliced.log 2>&1 </dev/null &
for i in $(seq 100); do
	if gpuslice --socket /inner/gpuslice/gpuslice.sock ps >/dev/null 2>&1; then
		exit 0
	fi
	sleep 0.1
done
cat /inner/gpusliced.log
exit 1
`

type nested struct {
	s     *site
	outer string
}

func (n nested) docker(words ...string) (string, error) {
	return n.s.engine.exec(n.outer, append([]string{"docker"}, words...)...)
}

func (n nested) run(name string, bytes uint64, flags ...string) string {
	n.s.t.Helper()
	words := append([]string{"run", "--detach", "--name", name, "--network", "none", "-v", "/fakecuda:/fakecuda", "-v", "/demo:/demo", "-v", "/fake:/fake",
		"-e", "LD_LIBRARY_PATH=/fakecuda", "-e", "FAKECUDA_STATE=/fake/state"}, flags...)
	if out, err := n.docker(append(words, imageRef("debian"), "/demo/cuda_hog", fmt.Sprint(bytes))...); err != nil {
		return out
	}
	said := ""
	n.s.Eventually("the inner container has said what it got", func() bool {
		out, err := n.docker("logs", name)
		said = testhost.LastLine(out)
		return err == nil && said != ""
	})
	return said
}

func (n nested) remove(names ...string) {
	n.s.t.Helper()
	if out, err := n.docker(append([]string{"rm", "--force"}, names...)...); err != nil {
		n.s.t.Fatalf("remove %q: %v\n%s", names, err, out)
	}
	n.s.Eventually("the slice uses no memory", func() bool {
		use := n.s.Use(n.s.id(n.outer))
		return use.Used+use.Overhead == 0
	})
}

// dockerInDocker: inner containers count against the outer container, whatever settings they have.
func dockerInDocker(s *site) {
	outer := s.run(container{
		privileged: true,
		env: []string{
			"GPUSLICE_BIN=" + s.Bin, "GPUSLICE_CONFIG=/inner/gpuslice.toml", "DOCKER_HOST=unix:///inner/sock",
			"PATH=/engines/runc-static:/engines/containerd-2:/engines/docker-29:" + s.Bin + ":/usr/sbin:/usr/bin:/sbin:/bin",
		},
		binds: []bind{{tools, "/engines"}, {imageArchive(s.t, "debian"), "/image.tar"}, {s.Bin, s.Bin}, {s.in("run"), s.in("run")}},
	})
	id, n := s.id(outer), nested{s, outer}
	s.exec(outer, "sh", "-eu", "-c", innerDocker)

	// A process that may mount the host's cgroups can leave its own; the pid namespace still identifies it.
	s.exec(outer, "sh", "-euc", "mkdir /host; mount -t cgroup2 none /host")
	if g := s.startHog(outer, fmt.Sprintf("{ echo 0 >/host/cgroup.procs; exec /demo/cuda_hog %d; }", gib)); !g.holds(gib, quota) {
		s.t.Errorf("in another cgroup it said %q", g.said)
	}
	expect.Equal(s.t, s.Use(id).Used, gib, "the container shows")
	s.killHogs(id)

	// The inner container has no file of ours: driver truth finds it.
	expect.Contains(s.t, n.run("plain", gib), "holds ")
	s.Eventually("it is charged to the outer container", func() bool { return s.Use(id).Overhead >= gib })
	s.mustRefuse(outer, 3*gib, "3 GiB beside the inner container's 1 GiB")
	n.remove("plain")

	// The inner container gets the outer container's bind mounts.
	bound := []string{"-v", "/.gpuslice:/.gpuslice:ro", "-v", "/etc/ld.so.preload:/etc/ld.so.preload:ro"}
	expect.Equal(s.t, n.run("bound", 2*gib, bound...), fmt.Sprintf("holds %d of %d", 2*gib, quota), "said")
	expect.Equal(s.t, s.Use(id).Used, 2*gib, "the outer container shows")
	expect.Contains(s.t, n.run("more", 2*gib, bound...), ": CUDA_ERROR_OUT_OF_MEMORY", "2 GiB beside the other's 2 GiB")
	n.remove("bound", "more")

	// Uses the host's control socket: the host's enforcer does not know the pids of this namespace.
	s.Must(os.WriteFile(s.in("run", "nested.toml"), fmt.Appendf(nil, "[enforcer]\nsocket = %q\nrun_dir = %q\n", s.Socket(), s.in("run")), 0o644))
	defer os.Remove(s.in("run", "nested.toml"))
	s.exec(outer, "cp", s.in("run", "nested.toml"), "/inner/gpuslice.toml")
	asks := []string{"--runtime", "gpuslice", "--annotation", "gpuslice.vram=2G"}
	s.checkMessage(n.run("asks", gib, asks...), "another pid namespace", "run it on the host")
	if all := s.Slices(); len(all) != 1 || all[0].ID != id {
		s.t.Errorf("the slices are %+v", all)
	}
	n.remove("asks")

	// Runs an inner gpuslice: its card is as large as the outer quota, and its grants count against the outer container.
	s.exec(outer, "sh", "-eu", "-c", innerDaemon)
	expect.Equal(s.t, n.run("sliced", gib, asks...), fmt.Sprintf("holds %d of %d", gib, 2*gib), "said")
	s.checkMessage(n.run("large", gib, "--runtime", "gpuslice", "--annotation", "gpuslice.vram=3G"), "2GiB")
	s.Eventually("it is charged to the outer container", func() bool { return s.Use(id).Overhead >= gib })
	s.mustRefuse(outer, 3*gib, "3 GiB beside the inner slice's 1 GiB")
	n.remove("sliced", "large")
}
