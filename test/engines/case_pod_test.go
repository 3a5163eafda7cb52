//go:build engines

// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/gpuslice/gpuslice/test/expect"
	"github.com/gpuslice/gpuslice/test/must"
)

func hasPods(e engine) string {
	if _, ok := e.(*kube); ok {
		return ""
	}
	return "pods are Kubernetes'"
}

// hasShimOfPods returns "" if one shim serves a pod and handlers are shims, as with containerd.
func hasShimOfPods(e engine) string {
	if why := hasPods(e); why != "" {
		return why
	}
	if _, ok := e.(*kube).daemon.(criContainerd); !ok {
		return "CRI-O has no shims: a monitor for each container calls the runtime"
	}
	return ""
}

// newPod starts an empty pod and returns its name and a container to start in it.
func (s *site) newPod(handler string, c container) (string, container) {
	s.t.Helper()
	name, c, err := s.tryPod(handler, c)
	s.Must(err)
	return name, c
}

func (s *site) tryPod(handler string, c container) (string, container, error) {
	c.name = "pod" + strings.TrimPrefix(s.t.Name(), "TestEngines")
	c.name = strings.NewReplacer("/", "-", " ", "-", "_", "-").Replace(c.name)
	c = c.complete(s)
	e := s.engine.(*kube)
	s.t.Cleanup(func() { _, _ = e.remove(c.name) })
	return c.name, c, e.sandbox(handler, c)
}

func (s *site) inPod(pod string, c container) string {
	s.t.Helper()
	return must.Get(s.engine.(*kube).start(pod, c))(s.T)
}

func (s *site) ids() (ids []string) {
	for _, slice := range s.Slices() {
		ids = append(ids, slice.ID)
	}
	slices.Sort(ids)
	return ids
}

// podOfTwo: a pod's annotation applies to each of its containers, and the sandbox holds no memory.
func podOfTwo(s *site) {
	pod, c := s.newPod(handlerShim, container{})
	must.Len(s.t, s.ids(), 0, "the sandbox has the slice")
	one, two := s.inPod(pod, c), s.inPod(pod, c)
	want := []string{one, two}
	slices.Sort(want)
	if ids := s.ids(); !slices.Equal(ids, want) {
		s.t.Fatalf("a pod of the containers %q has the slices %q", want, ids)
	}
	s.mustHold(one, 3*gib, quota, "in the one container")
	s.works(two) // its quota is separate from the first container's
	s.mustRefuse(one, 3*gib, "3 GiB beside 3 GiB of the same container")
	// Deleting the pod ends all its containers.
	ctx, cancel := patience()
	defer cancel()
	e := s.engine.(*kube)
	s.Must(e.removeSandbox(ctx, e.pod(pod)))
	s.Eventually("both slices are gone", func() bool { return len(s.ids()) == 0 })
	s.remove(pod)
}

func podRestarts(s *site) {
	pod, c := s.newPod(handlerShim, container{})
	first := s.inPod(pod, c)
	s.mustHold(first, 3*gib, quota)
	s.Must(unix.Kill(s.init(first), unix.SIGKILL))
	e := s.engine.(*kube)
	s.Eventually("the CRI says that it has exited", func() bool {
		ctx, cancel := patience()
		defer cancel()
		r, err := e.client.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: first})
		return err == nil && r.Status.State == cri.ContainerState_CONTAINER_EXITED && r.Status.ExitCode == 137
	})
	second := s.inPod(pod, c)
	must.True(s.t, first != second, "both are", first)
	s.works(second)
	s.Eventually("the first one's slice is gone", s.IsGone(first))
	s.remove(pod)
}

func podShimIsKilled(s *site) {
	pod, c := s.newPod(handlerShim, container{})
	one, two := s.inPod(pod, c), s.inPod(pod, c)
	inits := []int{s.init(one), s.init(two)}
	shim := s.parent(inits[0])
	if other := s.parent(inits[1]); other != shim || shim == 1 {
		s.t.Fatalf("the containers of a pod are children of %d and %d, want one shim", shim, other)
	}
	for _, id := range []string{one, two} {
		s.mustHold(id, gib, quota)
	}
	s.Must(unix.Kill(shim, unix.SIGKILL))
	for i, id := range []string{one, two} {
		if !s.becomesTrue(func() bool { return s.IsGone(id)() || s.Holds(id, gib)() && unix.Kill(inits[i], 0) == nil }) {
			s.t.Fatalf("the shim is dead, but the slice shows %+v", s.Slices())
		}
	}
	s.remove(pod)
	s.Eventually("both slices are gone", func() bool { return len(s.ids()) == 0 })
	s.works(s.run(container{}))
}

// podAnnotations covers the precedence of annotations, and handlers that drop them.
func podAnnotations(s *site) {
	e := s.engine.(*kube)
	// The kubelet gives a container only its own annotations and those of device plugins; they take precedence.
	pod, c := s.newPod(handlerShim, container{annotations: vram("8G")})
	id, err := e.startAnnotated(pod, c, vram("4G"))
	s.Must(err)
	s.works(id)
	s.remove(pod)

	// A handler without pod_annotations drops them silently.
	if hasShimOfPods(e) == "" {
		pod, c = s.newPod(handlerUnlisted, container{})
		_, err = e.start(pod, c)
		expect.Error(s.t, err, "a container without a quota was started")
		s.checkMessage(message(err), "no quota", "gpuslice.vram=4G")
		s.remove(pod)
	}

	// The error belongs to the container, not to its sandbox, so the pod's events show it.
	pod, c = s.newPod(handlerShim, container{annotations: vram("4X")})
	_, err = e.start(pod, c)
	expect.ErrorContains(s.t, err, "Container: ", "a bad annotation")
	s.checkMessage(message(err), "gpuslice.vram", `"4X"`)
	s.remove(pod)
}

func podOfRuncsShim(s *site) {
	pod, c := s.newPod(handlerRunc, container{})
	s.works(s.inPod(pod, c))
	s.remove(pod)
	pod, c = s.newPod(handlerRunc, container{annotations: vram("4X")})
	_, err := s.engine.(*kube).start(pod, c)
	s.checkMessage(message(err), "gpuslice.vram", `"4X"`)
	s.remove(pod)
}

// podSystemd: for the systemd cgroup driver our shim passes SystemdCgroup to the low-level runtime.
func podSystemd(s *site) {
	e := s.engine.(*kube)
	pod, _, err := s.tryPod(handlerSystemd, container{})
	expect.Error(s.t, err, "a pod was started by systemd, but there is none")
	said, readErr := os.ReadFile(e.systemd)
	if readErr != nil || !strings.Contains(string(said), " create ") {
		s.t.Errorf("runc was not told of systemd: %q, %v; the pod: %v", said, readErr, err)
	}
	s.remove(pod)
}
