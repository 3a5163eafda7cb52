//go:build engines

// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/test/must"
	"github.com/gpuslice/gpuslice/test/testhost"
)

// kube is a CRI daemon, driven with the kubelet's calls for pods. A container of the suite becomes a pod with one container; the
// annotations are the pod's.
type kube struct {
	s       *site
	daemon  criDaemon
	runtime []string // the low-level runtime, in the cache
	systemd string   // records how the low-level runtime was called for systemd
	more    []string // handlers of an equipped site, named like its runtimes
	images  cri.ImageServiceClient
	client  cri.RuntimeServiceClient

	mu   sync.Mutex
	pods map[string]*pod // by name
}

type pod struct {
	config     *cri.PodSandboxConfig
	handler    string // of its RuntimeClass
	sandbox    string // id
	containers []string
}

type criDaemon interface {
	name() string
	// configure writes the configuration, with the handler that `gpuslice install` adds; start starts the daemon.
	configure(e *kube)
	start(e *kube)
	socket(s *site) string
	// load imports an image for the CRI.
	load(e *kube, image string)
	// state is the low-level runtime's state directory for a container.
	state(s *site, id string) string
	// noUserns and noCDI return the reason why the daemon lacks the feature; "" if it has it.
	noUserns() string
	noCDI() string
}

// Handlers for RuntimeClasses.
const (
	handlerShim     = "gpuslice"          // as `gpuslice install containerd` configures it
	handlerRunc     = "gpuslice-runc"     // runc's shim with gpuslice-runtime for runc
	handlerUnlisted = "gpuslice-unlisted" // without pod_annotations
	handlerSystemd  = "gpuslice-systemd"  // with SystemdCgroup = true
)

// options wraps the low-level runtime in a script that records calls for systemd's cgroups. Such a container then fails, since
// there is no systemd.
func (e *kube) options(t testing.TB) testhost.Options {
	dir := t.TempDir()
	e.systemd = filepath.Join(dir, "said")
	script := fmt.Sprintf("#!/bin/sh\ncase \" $* \" in *' --systemd-cgroup '*) echo \"$*\" >>%s ;; esac\nexec %s \"$@\"\n",
		e.systemd, tool(t, e.runtime...))
	path := filepath.Join(dir, "runc")
	must.Do(t, os.WriteFile(path, []byte(script), 0o755))
	return testhost.Options{Runtimes: []string{path}}
}

func (e *kube) hasDaemon(name string) bool { return name == e.daemon.name() }

// showsRuncToo: CRI-O's monitor shows standard error, not runc's log.
func (e *kube) showsRuncToo() bool { return e.daemon.name() == "crio" }

func (e *kube) noUserns() string { return e.daemon.noUserns() }

func (e *kube) up(s *site) {
	e.s, e.pods = s, map[string]*pod{}
	e.fakeNetwork()
	e.daemon.configure(e)
	e.dial()
	e.daemon.start(e)
	daemon := s.daemons[e.daemon.name()]
	first := daemon.ready
	daemon.ready = func() error { return errors.Join(first(), e.ready()) }
	s.Eventually("the CRI is ready", func() bool { return e.ready() == nil })
	s.t.Cleanup(func() {
		for name := range e.pods {
			_, _ = e.remove(name)
		}
	})
	for _, image := range append(slices.Clone(images), pauseImage) {
		e.daemon.load(e, image)
		s.Eventually("the CRI has the image "+image, func() bool {
			ctx, cancel := patience()
			defer cancel()
			r, err := e.images.ImageStatus(ctx, &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: imageRef(image)}})
			return err == nil && r.Image != nil
		})
	}
}

func (e *kube) dial() {
	e.s.t.Helper()
	conn, err := grpc.NewClient("unix://"+e.daemon.socket(e.s),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1, MaxDelay: 50 * time.Millisecond}}))
	e.s.Must(err)
	e.s.t.Cleanup(func() { conn.Close() })
	e.client, e.images = cri.NewRuntimeServiceClient(conn), cri.NewImageServiceClient(conn)
}

// ready reports whether the daemon has loaded its state: containerd's CRI starts later than the rest.
func (e *kube) ready() error {
	ctx, cancel := patience()
	defer cancel()
	r, err := e.client.Status(ctx, &cri.StatusRequest{})
	if err != nil {
		return err
	}
	for _, c := range r.Status.Conditions {
		if c.Type == cri.RuntimeReady && !c.Status {
			return fmt.Errorf("%s: %s", c.Reason, c.Message)
		}
	}
	return nil
}

// patience returns a context that is cancelled after far more time than any call takes. It has no deadline, since CRI-O waits
// until shortly before it for a container that ignores SIGTERM.
func patience() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.Background())
	timer := time.AfterFunc(5*time.Minute, cancel)
	return ctx, func() {
		timer.Stop()
		cancel()
	}
}

func message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func (e *kube) run(c container) (string, error) {
	err := e.sandbox(handlerShim, c)
	if err == nil {
		_, err = e.start(c.name, c)
	}
	return message(err), err
}

func (e *kube) sandbox(handler string, c container) error {
	cgroups := "/" + cgroupParent(e.s.Dir)
	if handler == handlerSystemd {
		cgroups += ".slice"
	}
	p := &pod{handler: handler, config: &cri.PodSandboxConfig{
		Metadata:    &cri.PodSandboxMetadata{Name: c.name, Uid: c.name, Namespace: "default"},
		Annotations: c.annotations, Labels: podLabels(c.name),
		Linux: &cri.LinuxPodSandboxConfig{
			CgroupParent:    cgroups,
			SecurityContext: &cri.LinuxSandboxSecurityContext{NamespaceOptions: namespaces(c), Privileged: c.privileged},
		},
	}}
	e.mu.Lock()
	e.pods[c.name] = p
	e.mu.Unlock()
	ctx, cancel := patience()
	defer cancel()
	r, err := e.client.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: p.config, RuntimeHandler: handler})
	if err != nil {
		return fmt.Errorf("RunPodSandbox: %w", err)
	}
	e.mu.Lock()
	p.sandbox = r.PodSandboxId
	e.mu.Unlock()
	return nil
}

func podLabels(name string) map[string]string {
	return map[string]string{"io.kubernetes.pod.name": name, "io.kubernetes.pod.namespace": "default", "io.kubernetes.pod.uid": name}
}

func (e *kube) names(name string) (api.Names, bool) {
	return api.Names{Name: "main", Pod: name, Namespace: "default"}, true
}

func (e *kube) start(name string, c container) (id string, err error) {
	return e.startAnnotated(name, c, nil)
}

func (e *kube) startAnnotated(name string, c container, annotations map[string]string) (id string, err error) {
	p := e.pod(name)
	config := &cri.ContainerConfig{
		Metadata: &cri.ContainerMetadata{Name: "main", Attempt: uint32(len(p.containers))},
		Image:    &cri.ImageSpec{Image: imageRef(c.image), UserSpecifiedImage: imageRef(c.image)},
		Command:  c.args, Annotations: annotations,
		Linux: &cri.LinuxContainerConfig{
			Resources: &cri.LinuxContainerResources{CpuShares: 2, OomScoreAdj: 1000}, // the kubelet's values for a best-effort pod
			SecurityContext: &cri.LinuxContainerSecurityContext{
				NamespaceOptions: namespaces(c), Privileged: c.privileged, ReadonlyRootfs: c.readOnly,
			},
		},
	}
	config.Labels = podLabels(name)
	config.Labels["io.kubernetes.container.name"] = config.Metadata.Name
	for _, env := range c.env {
		key, value, _ := strings.Cut(env, "=")
		config.Envs = append(config.Envs, &cri.KeyValue{Key: key, Value: []byte(value)})
	}
	for _, name := range c.flags {
		config.CDIDevices = append(config.CDIDevices, &cri.CDIDevice{Name: name})
	}
	for _, b := range c.binds {
		config.Mounts = append(config.Mounts, &cri.Mount{HostPath: b.source, ContainerPath: b.target})
	}
	ctx, cancel := patience()
	defer cancel()
	r, err := e.client.CreateContainer(ctx, &cri.CreateContainerRequest{PodSandboxId: p.sandbox, Config: config, SandboxConfig: p.config})
	if err != nil {
		return "", fmt.Errorf("CreateContainer: %w", err)
	}
	e.mu.Lock()
	p.containers = append(p.containers, r.ContainerId)
	e.mu.Unlock()
	if _, err := e.client.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: r.ContainerId}); err != nil {
		return r.ContainerId, fmt.Errorf("StartContainer: %w", err)
	}
	return r.ContainerId, nil
}

// namespaces returns the kubelet's namespace options for a pod in the host's network.
func namespaces(c container) *cri.NamespaceOption {
	o := &cri.NamespaceOption{Network: cri.NamespaceMode_NODE, Pid: cri.NamespaceMode_CONTAINER}
	if c.hostPID {
		o.Pid = cri.NamespaceMode_NODE
	}
	if c.userns { // cannot use the host's network
		mapping := []*cri.IDMapping{{HostId: usernsBase, Length: 65536}}
		o.Network = cri.NamespaceMode_POD
		o.UsernsOptions = &cri.UserNamespace{Mode: cri.NamespaceMode_POD, Uids: mapping, Gids: mapping}
	}
	return o
}

func (e *kube) pod(name string) *pod {
	e.mu.Lock()
	defer e.mu.Unlock()
	if p := e.pods[name]; p != nil {
		return p
	}
	for _, p := range e.pods {
		if slices.Contains(p.containers, name) {
			return p
		}
	}
	return nil
}

func (e *kube) id(name string) string {
	p := e.pod(name)
	e.mu.Lock()
	defer e.mu.Unlock()
	if p == nil || len(p.containers) == 0 {
		return "none-of-" + name
	}
	return p.containers[len(p.containers)-1]
}

// exec runs a command in a pod's newest container, or in the container with that id.
func (e *kube) exec(name string, args ...string) (string, error) {
	id := name
	if p := e.pod(name); p != nil && !slices.Contains(p.containers, name) {
		id = e.id(name)
	}
	ctx, cancel := patience()
	defer cancel()
	r, err := e.client.ExecSync(ctx, &cri.ExecSyncRequest{ContainerId: id, Cmd: args, Timeout: 60})
	if err != nil {
		return message(err), err
	}
	out := string(r.Stdout) + string(r.Stderr)
	if r.ExitCode != 0 {
		return out, fmt.Errorf("exit status %d", r.ExitCode)
	}
	return out, nil
}

func (e *kube) kill(name string) (string, error) {
	ctx, cancel := patience()
	defer cancel()
	_, err := e.client.StopContainer(ctx, &cri.StopContainerRequest{ContainerId: e.id(name)})
	return message(err), err
}

// remove deletes a pod as the kubelet does, retrying until it works.
func (e *kube) remove(name string) (string, error) {
	p := e.pod(name)
	if p == nil {
		return "", nil
	}
	var err error
	for deadline := time.Now().Add(testhost.Patience); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		if err = e.tryRemove(p); err == nil {
			e.mu.Lock()
			defer e.mu.Unlock()
			delete(e.pods, p.config.Metadata.Name)
			return "", nil
		}
	}
	return message(err), err
}

func (e *kube) tryRemove(p *pod) error {
	ctx, cancel := patience()
	defer cancel()
	for _, id := range p.containers {
		_, stop := e.client.StopContainer(ctx, &cri.StopContainerRequest{ContainerId: id})
		_, remove := e.client.RemoveContainer(ctx, &cri.RemoveContainerRequest{ContainerId: id})
		if err := errors.Join(unlessGone(stop), unlessGone(remove)); err != nil {
			return err
		}
	}
	if err := e.removeSandbox(ctx, p); err != nil {
		return err
	}
	for _, id := range append(p.containers, p.sandbox) {
		if path := e.daemon.state(e.s, id); id != "" && exists(path) {
			return fmt.Errorf("%s is left", path)
		}
	}
	return nil
}

func (e *kube) removeSandbox(ctx context.Context, p *pod) error {
	if p.sandbox == "" {
		return nil
	}
	_, stop := e.client.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: p.sandbox})
	_, remove := e.client.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: p.sandbox})
	return errors.Join(unlessGone(stop), unlessGone(remove))
}

func unlessGone(err error) error {
	if status.Code(err) == codes.NotFound {
		return nil
	}
	return err
}
