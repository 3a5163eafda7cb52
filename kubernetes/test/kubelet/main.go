// SPDX-License-Identifier: Apache-2.0

// Kubelet replaces the API server, the kubelet and a container runtime's CDI for one gpuslice-dra, without a cluster:
//
//	kubelet DIR GPUSLICE-DRA FLAG…
//
// It starts the driver with its files below DIR, reads commands as lines of JSON from standard input, and answers each with one
// line. test/gpu/kubernetes.py runs it.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	oci "github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	dra "k8s.io/kubelet/pkg/apis/dra/v1"
	"k8s.io/utils/ptr"
	"tags.cncf.io/container-device-interface/pkg/cdi"

	"github.com/gpuslice/gpuslice/kubernetes/config"
	"github.com/gpuslice/gpuslice/kubernetes/inventory"
)

const (
	node      = "node"
	namespace = "team"
	patience  = time.Minute
)

// order is a command: prepare or unprepare with the name of a claim, or inject with the path of an OCI configuration.
type order struct {
	Prepare, Unprepare, Inject string
	Bytes                      int64    // of the claim, on the first published device
	IDs                        []string // of CDI devices
}

type answer struct {
	IDs   []string `json:"ids,omitempty"`
	Error string   `json:"error,omitempty"`
}

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: kubelet DIR GPUSLICE-DRA FLAG…")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, "kubelet:", err)
		os.Exit(1)
	}
}

func run(dir string, driver []string) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	s := &server{slices: make(map[string]*resourceapi.ResourceSlice), claims: make(map[string]*resourceapi.ResourceClaim)}
	go func() { _ = http.Serve(l, s.handler()) }() //nolint:gosec // only this machine's driver calls it
	kubeconfig := filepath.Join(dir, "kubeconfig")
	err = clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"c": {Server: "http://" + l.Addr().String()}},
		Contexts:       map[string]*clientcmdapi.Context{"x": {Cluster: "c"}},
		CurrentContext: "x",
	}, kubeconfig)
	if err != nil {
		return err
	}
	specs := filepath.Join(dir, "cdi")
	if err := os.MkdirAll(filepath.Join(dir, "plugins_registry"), 0o755); err != nil {
		return err
	}
	cmd := exec.Command(driver[0], append(driver[1:], "--kubeconfig="+kubeconfig, "--node="+node, "--kubelet="+dir, "--cdi="+specs)...)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return err
	}
	defer func() { _ = cmd.Process.Signal(syscall.SIGTERM); _ = cmd.Wait() }()
	conn, err := grpc.NewClient("unix://"+filepath.Join(dir, "plugins", config.Driver, "dra.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	k := &kubelet{server: s, driver: dra.NewDRAPluginClient(conn), specs: specs}
	answers := json.NewEncoder(os.Stdout)
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		var o order
		var a answer
		err := json.Unmarshal(lines.Bytes(), &o)
		if err == nil {
			a.IDs, err = k.run(o)
		}
		if err != nil {
			a.Error = err.Error()
		}
		if err := answers.Encode(a); err != nil {
			return err
		}
	}
	return nil
}

type kubelet struct {
	*server
	driver dra.DRAPluginClient
	specs  string
}

func (k *kubelet) run(o order) ([]string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	switch {
	case o.Prepare != "":
		return k.prepare(ctx, o.Prepare, o.Bytes)
	case o.Unprepare != "":
		return nil, k.unprepare(ctx, o.Unprepare)
	case o.Inject != "":
		return nil, k.inject(o.Inject, o.IDs)
	}
	return nil, errors.New("neither prepare nor unprepare nor inject")
}

// prepare creates a claim, allocates it as the scheduler does, and has the driver prepare it.
func (k *kubelet) prepare(ctx context.Context, name string, bytes int64) ([]string, error) {
	device, err := k.first(ctx)
	if err != nil {
		return nil, err
	}
	c := &resourceapi.ResourceClaim{
		TypeMeta:   metav1.TypeMeta{APIVersion: resourceapi.SchemeGroupVersion.String(), Kind: "ResourceClaim"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: uuid.NewUUID(), ResourceVersion: "1"},
	}
	c.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{{
		Request: "gpu", Driver: config.Driver, Pool: node, Device: device, ShareID: ptr.To(uuid.NewUUID()),
		ConsumedCapacity: map[resourceapi.QualifiedName]resource.Quantity{inventory.Memory: *resource.NewQuantity(bytes, resource.BinarySI)},
	}}}}
	c.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: name, UID: uuid.NewUUID()}}
	k.mu.Lock()
	k.claims[name] = c
	k.mu.Unlock()
	r, err := k.driver.NodePrepareResources(ctx, &dra.NodePrepareResourcesRequest{Claims: []*dra.Claim{{Namespace: namespace, Name: name, Uid: string(c.UID)}}}, grpc.WaitForReady(true))
	if err != nil {
		return nil, err
	}
	one := r.Claims[string(c.UID)]
	if one.GetError() != "" {
		return nil, errors.New(one.GetError())
	}
	var ids []string
	for _, d := range one.GetDevices() {
		ids = append(ids, d.CdiDeviceIds...)
	}
	return ids, nil
}

func (k *kubelet) unprepare(ctx context.Context, name string) error {
	k.mu.Lock()
	c := k.claims[name]
	k.mu.Unlock()
	if c == nil {
		return fmt.Errorf("there is no claim %s", name)
	}
	r, err := k.driver.NodeUnprepareResources(ctx, &dra.NodeUnprepareResourcesRequest{Claims: []*dra.Claim{{Namespace: namespace, Name: name, Uid: string(c.UID)}}})
	if err != nil {
		return err
	}
	if why := r.Claims[string(c.UID)].GetError(); why != "" {
		return errors.New(why)
	}
	k.mu.Lock()
	delete(k.claims, name)
	k.mu.Unlock()
	return nil
}

// inject edits a bundle's configuration as containerd and CRI-O do.
func (k *kubelet) inject(file string, ids []string) error {
	cache, err := cdi.NewCache(cdi.WithSpecDirs(k.specs), cdi.WithAutoRefresh(false))
	if err != nil {
		return err
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var spec oci.Spec
	if err := json.Unmarshal(text, &spec); err != nil {
		return err
	}
	if missing, err := cache.InjectDevices(&spec, ids...); err != nil {
		return fmt.Errorf("%w (missing: %v)", err, missing)
	}
	if text, err = json.Marshal(&spec); err != nil {
		return err
	}
	return os.WriteFile(file, text, 0o644)
}

// server implements the part of Kubernetes' API that the driver needs. The driver logs failed calls of the rest.
type server struct {
	mu     sync.Mutex
	slices map[string]*resourceapi.ResourceSlice
	claims map[string]*resourceapi.ResourceClaim
	number int // of the last write
}

// first waits for the driver to publish a device.
func (s *server) first(ctx context.Context) (string, error) {
	for {
		s.mu.Lock()
		for _, slice := range s.slices {
			for _, d := range slice.Spec.Devices {
				if len(d.Taints) == 0 {
					s.mu.Unlock()
					return d.Name, nil
				}
			}
		}
		s.mu.Unlock()
		select {
		case <-ctx.Done():
			return "", errors.New("the driver published no device")
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (s *server) handler() http.Handler {
	const slices, claims = "/apis/resource.k8s.io/v1/resourceslices", "/apis/resource.k8s.io/v1/namespaces/" + namespace + "/resourceclaims/{name}"
	mux := http.NewServeMux()
	mux.HandleFunc("GET /api/v1/nodes/"+node, func(w http.ResponseWriter, _ *http.Request) {
		send(w, &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: node, UID: "node"}})
	})
	mux.HandleFunc("GET "+claims, func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if c := s.claims[r.PathValue("name")]; c != nil {
			send(w, c)
			return
		}
		refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound)
	})
	mux.HandleFunc("GET "+slices, func(w http.ResponseWriter, r *http.Request) {
		switch q := r.URL.Query(); {
		case q.Get("sendInitialEvents") != "":
			refuse(w, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid) // makes the client list instead
		case strings.HasPrefix(q.Get("watch"), "t") || q.Get("watch") == "1":
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done() // only the driver writes slices, so there are no other events
		default:
			s.list(w)
		}
	})
	mux.HandleFunc("POST "+slices, s.write)
	mux.HandleFunc("PUT "+slices+"/{name}", s.write)
	mux.HandleFunc("DELETE "+slices+"/{name}", func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.slices, r.PathValue("name"))
		send(w, &metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusSuccess})
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound)
	})
	return mux
}

func (s *server) list(w http.ResponseWriter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := resourceapi.ResourceSliceList{
		TypeMeta: metav1.TypeMeta{APIVersion: resourceapi.SchemeGroupVersion.String(), Kind: "ResourceSliceList"},
		ListMeta: metav1.ListMeta{ResourceVersion: fmt.Sprint(s.number + 1)}, Items: []resourceapi.ResourceSlice{},
	}
	for _, slice := range s.slices {
		list.Items = append(list.Items, *slice)
	}
	send(w, &list)
}

func (s *server) write(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	object, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil) // clients send protocol buffers
	slice, ok := object.(*resourceapi.ResourceSlice)
	if err != nil || !ok {
		refuse(w, http.StatusBadRequest, metav1.StatusReasonBadRequest)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.number++
	if slice.Name == "" {
		slice.Name = fmt.Sprint(slice.GenerateName, s.number)
	}
	slice.UID, slice.ResourceVersion = types.UID(slice.Name), fmt.Sprint(s.number)
	slice.TypeMeta = metav1.TypeMeta{APIVersion: resourceapi.SchemeGroupVersion.String(), Kind: "ResourceSlice"}
	s.slices[slice.Name] = slice
	send(w, slice)
}

func send(w http.ResponseWriter, object any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(object) // a disconnected client retries
}

func refuse(w http.ResponseWriter, code int, reason metav1.StatusReason) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(&metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Code: int32(code), Reason: reason,
	})
}
