//go:build cluster

// SPDX-License-Identifier: Apache-2.0

// Package test runs the driver in a real cluster of one node: etcd, API server, scheduler, controller manager, kubelet,
// containerd and runc, with gpusliced on two simulated cards. `make test-kubernetes` runs it; test/engines/build.sh builds the
// programs.
//
// A case is a function and a line in cases_test.go. It has its own namespace and leaves no pool, slice or CDI specification.
package test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/gpuslice/gpuslice/kubernetes/cdi"
	"github.com/gpuslice/gpuslice/kubernetes/test/cluster"
	"github.com/gpuslice/gpuslice/test/await"
	"github.com/gpuslice/gpuslice/test/testhost"
)

const nodeName = "node-a"

// nvmlFault is a file with which NVML fails for gpusliced.
const nvmlFault = "/run/nvml-fault"

// patience limits waits for Kubernetes, which retries some operations after a minute.
const patience = 2 * time.Minute

type node struct {
	*testhost.Host // of the node; its Client is the enforcer's
	plane          *cluster.Cluster
	kube           kubernetes.Interface // for the admin
	suite          *testing.T
	t              *testing.T // of the case
	engines        string     // directory of the built programs
	ns             string     // of the case

	containerd, kubelet, driver *cluster.Daemon
	crio                        *cluster.Daemon // nil if the kubelet uses containerd
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{suite: t, t: t, engines: filepath.Dir(cluster.Programs(t, "containerd-2", "runc-1.4", "crio", "podman", "images"))}
	n.Host = testhost.New(t, testhost.Options{Runtimes: []string{n.engine("runc-1.4", "runc")}, Env: []string{"FAKECUDA_DEVICES=2", "FAKECUDA_NVML_FAULT=" + nvmlFault}})
	n.Must(os.Chmod(n.Dir, 0o755))
	n.Must(os.Chmod(n.in("fake"), 0o777))
	const kubeletToken = "kubelet-of-the-test"
	n.plane = cluster.Start(t, cluster.Options{Dir: n.in("cluster"), Address: apiAddress, Controlled: true, Users: []cluster.User{
		{Name: "system:node:" + nodeName, Token: kubeletToken, Groups: []string{"system:nodes"}},
	}})
	n.kube = n.plane.Client
	n.manifests()
	n.startContainerd()
	n.startKubelet(n.plane.Kubeconfig("kubelet", kubeletToken))
	n.nvidia()
	n.setHook("")
	n.startDriver()
	return n
}

func (n *node) hook() string { return n.in("gpuslice-hook") }

func (n *node) in(parts ...string) string {
	return filepath.Join(append([]string{n.Dir}, parts...)...)
}

func (n *node) engine(parts ...string) string {
	return filepath.Join(append([]string{n.engines}, parts...)...)
}

// manifests applies the base without the DaemonSet: the driver is a process of the test.
func (n *node) manifests() {
	n.t.Helper()
	out, err := n.plane.Kubectl("", "kustomize", "../deploy/base")
	n.Must(err)
	var kept []string
	for _, object := range strings.Split(out, "\n---\n") {
		if !strings.Contains(object, "\nkind: DaemonSet\n") {
			kept = append(kept, object)
		}
	}
	_, err = n.plane.Kubectl(strings.Join(kept, "\n---\n"), "apply", "-f", "-")
	n.Must(err)
	_, err = n.plane.Kubectl("", "apply", "-f", "../deploy/elastic/deviceclass.yaml")
	n.Must(err)
}

func (n *node) write(path, format string, args ...any) string {
	n.t.Helper()
	n.Must(os.MkdirAll(filepath.Dir(path), 0o755))
	n.Must(os.WriteFile(path, fmt.Appendf(nil, format, args...), 0o644))
	return path
}

func imageRef(name string) string { return "gpuslice.test/" + name + ":1" }

func (n *node) startContainerd() {
	n.t.Helper()
	file := n.write("/etc/containerd/config.toml", `version = 3
root = %q
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = %q
[plugins."io.containerd.cri.v1.runtime"]
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
      BinaryName = %q
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.gpuslice]
    runtime_type = "io.containerd.gpuslice.v1"
    runtime_path = %q
    pod_annotations = ["gpuslice.*"]
    container_annotations = ["gpuslice.*"]
[plugins."io.containerd.nri.v1.nri"]
  disable = true
`, n.in("containerd"), imageRef("pause"), n.engine("runc-1.4", "runc"), filepath.Join(n.Bin, "containerd-shim-gpuslice-v1"))
	n.podNetwork()
	n.containerd = &cluster.Daemon{
		T: n.t, Name: "containerd", Dir: n.Dir, Command: []string{n.engine("containerd-2", "containerd"), "--config", file},
		Env: []string{"PATH=" + n.engine("containerd-2") + ":/usr/sbin:/usr/bin:/sbin:/bin", "GPUSLICE_CONFIG=" + n.Config()},
		Ready: func() error {
			if out, err := n.ctr("version"); err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
			return nil
		},
	}
	n.run(n.containerd)
	n.image(imageRef("debian"), n.engine("images", "debian.tar"), testhost.ImageConfig{Cmd: []string{"/bin/sh"}})
	n.image(imageRef("pause"), n.engine("images", "busybox.tar"), testhost.ImageConfig{Cmd: []string{"/bin/sleep", "1000000"}})
}

// podNetwork installs a network plugin that connects pods with their node, where the API server runs.
func (n *node) podNetwork() {
	n.t.Helper()
	n.write("/etc/cni/net.d/pods.conflist", `{"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "pods"}]}`)
	const plugin = `#!/bin/sh
set -e
case "$CNI_COMMAND" in
VERSION) echo '{"cniVersion": "1.0.0", "supportedVersions": ["0.4.0", "1.0.0"]}' && exit ;;
ADD) ;;
*) exit 0 ;;
esac
pod=${CNI_NETNS##*/} number=1
if [ "$CNI_IFNAME" = lo ]; then
	ip -n "$pod" link set lo up
	address=127.0.0.1/8
else
	until mkdir "/run/pod-$number" 2>/dev/null; do number=$((number + 1)); done
	address=198.51.100.$number/32
	ip link add name "pod$number" up type veth peer name "$CNI_IFNAME" netns "$pod"
	ip -n "$pod" address add "$address" dev "$CNI_IFNAME"
	ip -n "$pod" link set "$CNI_IFNAME" up
	ip -n "$pod" route add %[1]s dev "$CNI_IFNAME"
	ip -n "$pod" route add default via %[1]s
	ip route add "$address" dev "pod$number" src %[1]s
fi
echo '{"cniVersion": "1.0.0", "interfaces": [{"name": "'$CNI_IFNAME'", "sandbox": "'$CNI_NETNS'"}], "ips": [{"interface": 0, "address": "'$address'"}]}'
`
	for _, name := range []string{"loopback", "pods"} { // runtimes use "loopback" for a pod's loopback interface
		n.Must(os.Chmod(n.write("/opt/cni/bin/"+name, plugin, nodeAddress), 0o755))
	}
}

// image imports an image of one layer into containerd.
func (n *node) image(ref, layer string, runs testhost.ImageConfig) {
	n.t.Helper()
	file := n.in("image.tar")
	n.Must(testhost.WriteImage(file, layer, ref, runs))
	if out, err := n.ctr("--namespace", "k8s.io", "image", "import", file); err != nil {
		n.t.Fatalf("import %s: %v\n%s", ref, err, out)
	}
	n.Must(os.Remove(file))
}

func (n *node) run(d *cluster.Daemon) {
	n.t.Helper()
	d.Start()
	n.suite.Cleanup(func() { d.End() })
}

const (
	kubeletFile      = "/etc/kubernetes/kubelet.yaml"
	containerdSocket = "/run/containerd/containerd.sock"
)

func (n *node) ctr(args ...string) ([]byte, error) {
	if _, err := os.Stat(containerdSocket); err != nil { // it would wait for ten seconds
		return nil, err
	}
	return exec.Command(n.engine("containerd-2", "ctr"), args...).CombinedOutput()
}

func (n *node) startKubelet(kubeconfig string) {
	n.t.Helper()
	file := n.write(kubeletFile, `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
address: 0.0.0.0
readOnlyPort: 0
cgroupDriver: cgroupfs
cgroupRoot: /%s
failCgroupV1: false
failSwapOn: false
containerRuntimeEndpoint: unix://%s
crashLoopBackOff: {maxContainerRestartPeriod: 1s}
enforceNodeAllocatable: []
evictionHard: {memory.available: 10Mi, nodefs.available: 10Mi}
localStorageCapacityIsolation: false
makeIPTablesUtilChains: false
resolvConf: ""
syncFrequency: 10s
`, filepath.Base(os.Getenv(dirVariable)), containerdSocket)
	n.kubelet = &cluster.Daemon{
		T: n.t, Name: "kubelet", Dir: n.Dir, Command: []string{n.plane.Program("kubelet"), "--config=" + file, "--kubeconfig=" + kubeconfig,
			"--hostname-override=" + nodeName, "--node-ip=" + nodeAddress, "--cert-dir=" + n.in("kubelet"), "--v=4"},
		Env: []string{"PATH=" + n.engine("containerd-2") + ":/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + n.Dir},
		Ready: func() error {
			ctx, cancel := context.WithTimeout(context.Background(), await.Patience)
			defer cancel()
			node, err := n.kube.CoreV1().Nodes().Get(ctx, nodeName, metav1.GetOptions{})
			if err != nil {
				return err
			}
			for _, c := range node.Status.Conditions {
				if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
					return errors.New(c.Message)
				}
			}
			return dialTCP("127.0.0.1:10250")
		},
	}
	n.run(n.kubelet)
}

func dialTCP(address string) error {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return err
	}
	return conn.Close()
}

// nvidia writes NVIDIA's CDI specification for the simulated driver, which finds its GPUs by a variable instead of device nodes.
func (n *node) nvidia() {
	n.t.Helper()
	type object = map[string]any
	nodeOf := func(name string, minor int) object {
		path := "/dev/" + name
		n.Must(unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(195, uint32(minor)))))
		return object{"path": path}
	}
	devices, err := n.Client.Devices(context.Background())
	n.Must(err)
	var gpus []object
	for _, d := range devices {
		gpus = append(gpus, object{"name": d.UUID, "containerEdits": object{
			"deviceNodes": []object{nodeOf(fmt.Sprint("nvidia", *d.Minor), *d.Minor)}, "env": []string{"CUDA_VISIBLE_DEVICES=" + d.UUID},
		}})
	}
	bind := func(host, container, mode string) object {
		return object{"hostPath": host, "containerPath": container, "options": []string{mode, "nosuid", "nodev", "rbind", "rprivate"}}
	}
	spec, err := json.Marshal(object{
		"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": gpus,
		"containerEdits": object{
			"deviceNodes": []object{nodeOf("nvidiactl", 255)},
			"mounts":      []object{bind(filepath.Join(n.Bin, "fakecuda"), "/fakecuda", "ro"), bind(n.in("fake"), "/fake", "rw"), bind(filepath.Join(n.Bin, "demo"), "/demo", "ro")},
			"env":         []string{"LD_LIBRARY_PATH=/fakecuda", "FAKECUDA_STATE=/fake/state"},
		},
	})
	n.Must(err)
	n.write("/etc/cdi/nvidia.json", "%s", spec)
}

// startDriver starts the driver with a token bound to the node, which permits writes for this node only.
func (n *node) startDriver() {
	n.t.Helper()
	ctx := context.Background()
	node, err := n.kube.CoreV1().Nodes().Get(ctx, nodeName, metav1.GetOptions{})
	n.Must(err)
	token, err := n.kube.CoreV1().ServiceAccounts("gpuslice").CreateToken(ctx, "gpuslice-dra", &authv1.TokenRequest{Spec: authv1.TokenRequestSpec{
		ExpirationSeconds: ptr.To[int64](3600),
		BoundObjectRef:    &authv1.BoundObjectReference{Kind: "Node", APIVersion: "v1", Name: nodeName, UID: node.UID},
	}}, metav1.CreateOptions{})
	n.Must(err)
	n.driver = &cluster.Daemon{
		T: n.t, Name: "gpuslice-dra", Dir: n.Dir, Command: []string{filepath.Join(n.Bin, "gpuslice-dra"), "--node=" + nodeName,
			"--kubeconfig=" + n.plane.Kubeconfig("driver", token.Status.Token), "--socket=" + n.Socket(), "--hook=" + n.hook(),
			"--hook-config=" + n.Config(), "--elastic", "--metrics-address=127.0.0.1:9837", "--live-address=127.0.0.1:51515"},
		Ready: func() error {
			if len(n.resourceSlices()) == 0 {
				return errors.New("no ResourceSlice")
			}
			return dialTCP("127.0.0.1:9837")
		},
	}
	n.run(n.driver)
}

func (n *node) resourceSlices() []resourceapi.ResourceSlice {
	ctx, cancel := context.WithTimeout(context.Background(), await.Patience)
	defer cancel()
	list, err := n.kube.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{})
	if err != nil {
		n.t.Logf("list the ResourceSlices: %v", err)
		return nil
	}
	return list.Items
}

func (n *node) eventually(what string, is func() error) {
	n.t.Helper()
	var err error
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if err = is(); err == nil {
			return
		}
	}
	n.t.Fatalf("after %v it is still not so that %s: %v", patience, what, err)
}

// left returns an error if claims have pools, slices or specifications on the node.
func (n *node) left() error {
	ctx, cancel := context.WithTimeout(context.Background(), await.Patience)
	defer cancel()
	pools, err := n.Client.Pools(ctx)
	if err != nil {
		return err
	}
	var names []string
	for _, p := range pools {
		names = append(names, "pool "+p.Name)
	}
	for _, s := range n.Slices() {
		names = append(names, "slice "+s.ID)
	}
	files, err := (&cdi.Writer{Dir: "/var/run/cdi"}).List()
	if err != nil {
		return err
	}
	for _, f := range files {
		names = append(names, "CDI specification of "+f.String())
	}
	if len(names) > 0 {
		return errors.New(strings.Join(names, ", "))
	}
	return nil
}

// of prepares the node for one case, with a new namespace.
func (n *node) of(t *testing.T) {
	t.Helper()
	n.t, n.T = t, t
	ns, err := n.kube.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "team-"}}, metav1.CreateOptions{})
	n.Must(err)
	n.ns = ns.Name
	n.eventually("the namespace has its account", func() error {
		_, err := n.kube.CoreV1().ServiceAccounts(n.ns).Get(t.Context(), "default", metav1.GetOptions{})
		return err
	})
}
