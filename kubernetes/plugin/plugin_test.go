// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	grpchealth "google.golang.org/grpc/health/grpc_health_v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	drahealth "k8s.io/kubelet/pkg/apis/dra-health/v1"
	dra "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/gpuslice/gpuslice/enforcer/api"
	"github.com/gpuslice/gpuslice/kubernetes/config"
	"github.com/gpuslice/gpuslice/kubernetes/inventory"
)

const (
	gib  = 1 << 30
	uid  = types.UID("0a1b2c3d-1111-2222-3333-444455556666")
	uuid = "GPU-00112233-4455-6677-8899-aabbccddeeff"
)

func allocated() *resourceapi.ResourceClaim {
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "train", UID: uid}}
	c.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{{
		Request: "gpu", Driver: config.Driver, Pool: "node", Device: inventory.DeviceName(uuid),
		ConsumedCapacity: map[resourceapi.QualifiedName]resource.Quantity{inventory.Memory: resource.MustParse("4Gi")},
	}}}}
	c.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: "pod-1", UID: "u"}}
	return c
}

// work is what the plugin carries calls to.
type work struct {
	prepare func(context.Context) error
	health  api.Health
	away    error
}

func (w *work) Prepare(ctx context.Context, c *resourceapi.ResourceClaim) ([]kubeletplugin.Device, error) {
	r := c.Status.Allocation.Devices.Results[0]
	return []kubeletplugin.Device{{Requests: []string{r.Request}, PoolName: r.Pool, DeviceName: r.Device, CDIDeviceIDs: []string{"gpuslice.io/vram=x"}}}, w.prepare(ctx)
}
func (w *work) Unprepare(context.Context, types.UID) error { return nil }
func (w *work) Devices(context.Context) ([]api.Device, error) {
	return []api.Device{{UUID: uuid}}, w.away
}
func (w *work) Health(context.Context) (api.Health, error) { return w.health, w.away }

// kubelet is the other end of the plugin's sockets.
type kubelet struct {
	dra.DRAPluginClient
	health drahealth.DRAResourceHealthClient
	live   *Live
	kube   *fake.Clientset
	status *Status
}

func start(t *testing.T, w *work) *kubelet {
	t.Helper()
	dir, err := os.MkdirTemp("", "gs") // t.TempDir is too long for the name of a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	ctx, cancel := context.WithCancel(context.Background())
	kube := fake.NewClientset(allocated(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}})
	log := slog.New(slog.DiscardHandler)
	s := &Status{Kube: kube, Node: "node", Log: log, Every: 5 * time.Millisecond, Claims: func(u types.UID) (string, string, bool) { return "team", "train", u == uid }}
	p := &Plugin{Preparer: w, Enforcer: w, Node: "node", Status: s, Metrics: NewMetrics(prometheus.NewRegistry()), Log: log, Fatal: func(err error) { t.Error(err) }}
	helper, err := kubeletplugin.Start(ctx, p, kubeletplugin.KubeClient(kube), kubeletplugin.NodeName("node"), kubeletplugin.DriverName(config.Driver),
		kubeletplugin.Serialize(false), kubeletplugin.RegistrarDirectoryPath(dir), kubeletplugin.PluginDataDirectoryPath(dir))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { defer close(done); s.Run(ctx) }()
	t.Cleanup(func() { cancel(); helper.Stop(); <-done })
	socket := filepath.Join(dir, "dra.sock")
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	live, err := NewLive(filepath.Join(dir, config.Driver+"-reg.sock"), socket)
	if err != nil {
		t.Fatal(err)
	}
	return &kubelet{dra.NewDRAPluginClient(conn), drahealth.NewDRAResourceHealthClient(conn), live, kube, s}
}

func (k *kubelet) prepare(t *testing.T) *dra.NodePrepareResourceResponse {
	t.Helper()
	r, err := k.NodePrepareResources(t.Context(), &dra.NodePrepareResourcesRequest{Claims: []*dra.Claim{{Namespace: "team", Name: "train", Uid: string(uid)}}})
	if err != nil {
		t.Fatal(err)
	}
	return r.Claims[string(uid)]
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("it is still not so that %s", what)
		}
	}
}

func (k *kubelet) ready() *metav1.Condition {
	c, err := k.kube.ResourceV1().ResourceClaims("team").Get(context.Background(), "train", metav1.GetOptions{})
	if err != nil || len(c.Status.Devices) != 1 || len(c.Status.Devices[0].Conditions) != 1 {
		return nil
	}
	return &c.Status.Devices[0].Conditions[0]
}

func TestTheKubeletIsAnsweredAndTheClaimSaysWhatCameOfIt(t *testing.T) {
	w := &work{prepare: func(context.Context) error { return errors.New("the card is full") }}
	k := start(t, w)
	if got := k.prepare(t); !strings.Contains(got.Error, "the card is full") {
		t.Errorf("got %+v", got)
	}
	eventually(t, "the claim says why", func() bool {
		c := k.ready()
		return c != nil && c.Status == metav1.ConditionFalse && c.Message == "the card is full"
	})
	w.prepare = func(context.Context) error { return nil }
	if got := k.prepare(t); got.Error != "" || len(got.Devices) != 1 || got.Devices[0].CdiDeviceIds[0] != "gpuslice.io/vram=x" {
		t.Errorf("got %+v", got)
	}
	eventually(t, "the claim is ready", func() bool { c := k.ready(); return c != nil && c.Status == metav1.ConditionTrue })
	c, err := k.kube.ResourceV1().ResourceClaims("team").Get(t.Context(), "train", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var data granted
	if err := json.Unmarshal(c.Status.Devices[0].Data.Raw, &data); err != nil || data != (granted{"4Gi", uuid}) {
		t.Errorf("data %+v, %v", data, err)
	}
	r, err := k.NodeUnprepareResources(t.Context(), &dra.NodeUnprepareResourcesRequest{Claims: []*dra.Claim{{Uid: string(uid)}}})
	if err != nil || r.Claims[string(uid)].Error != "" {
		t.Errorf("got %+v, %v", r, err)
	}
}

func TestAClaimThatWaitsDelaysNoOther(t *testing.T) {
	wait, waiting := make(chan struct{}), make(chan struct{}, 1)
	w := &work{prepare: func(context.Context) error { waiting <- struct{}{}; <-wait; return nil }}
	k := start(t, w)
	defer close(wait)
	go func() {
		_, _ = k.NodePrepareResources(context.Background(), &dra.NodePrepareResourcesRequest{Claims: []*dra.Claim{{Namespace: "team", Name: "train", Uid: string(uid)}}})
	}()
	<-waiting
	if _, err := k.NodeUnprepareResources(t.Context(), &dra.NodeUnprepareResourcesRequest{Claims: []*dra.Claim{{Uid: "other"}}}); err != nil {
		t.Error(err)
	}
}

func TestADevicesHealthIsTheEnforcers(t *testing.T) {
	w := &work{health: api.Health{Checks: []api.Check{{Name: "truth", Device: uuid, For: api.ForReady, Message: "the driver does not answer"}}}}
	k := start(t, w)
	stream, err := k.health.NodeWatchResources(t.Context(), &drahealth.NodeWatchResourcesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	r, err := stream.Recv()
	if err != nil || len(r.Devices) != 1 || r.Devices[0].Health != drahealth.HealthStatus_UNHEALTHY || !strings.Contains(r.Devices[0].Message, "does not answer") {
		t.Errorf("got %+v, %v", r, err)
	}
}

func TestAPodWhoseProgramIsRefusedMemoryHasOneEventForAll(t *testing.T) {
	k := start(t, &work{})
	limit, used := uint64(4*gib), uint64(3*gib)
	for range 100 {
		k.status.Refused(uid, api.Event{Kind: api.EventRefused, Command: "python", Requested: 2 * gib, Limit: &limit, Used: &used, Time: time.Now()})
	}
	k.status.Refused("other", api.Event{})
	events := func() []corev1.Event {
		list, err := k.kube.CoreV1().Events("team").List(context.Background(), metav1.ListOptions{})
		if err != nil {
			t.Error(err)
		}
		return list.Items
	}
	eventually(t, "there is one", func() bool { return len(events()) > 0 })
	k.status.Refused(uid, api.Event{})
	time.Sleep(10 * k.status.Every)
	got := events()
	if len(got) != 1 || got[0].InvolvedObject.Name != "pod-1" || got[0].Message != "a process (python) was refused "+api.FormatSize(2*gib)+": claim train has "+
		api.FormatSize(4*gib)+", of which "+api.FormatSize(3*gib)+" were in use" {
		t.Errorf("got %+v", got)
	}
}

func TestTheLivenessProbeAsksTheDriversOwnSockets(t *testing.T) {
	k := start(t, &work{away: api.ErrUnreachable})
	for service, want := range map[string]bool{"": true, "liveness": true, "other": false} {
		r, err := k.live.Check(t.Context(), &grpchealth.HealthCheckRequest{Service: service})
		if got := err == nil && r.Status == grpchealth.HealthCheckResponse_SERVING; got != want {
			t.Errorf("%q: %v, %v", service, r, err)
		}
	}
	dead, err := NewLive("/none/a", "/none/b")
	if err != nil {
		t.Fatal(err)
	}
	if r, err := dead.Check(t.Context(), &grpchealth.HealthCheckRequest{}); err != nil || r.Status != grpchealth.HealthCheckResponse_NOT_SERVING {
		t.Errorf("without sockets: %v, %v", r, err)
	}
}
