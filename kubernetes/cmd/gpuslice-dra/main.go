// SPDX-License-Identifier: Apache-2.0

// Gpuslice-dra is gpuslice's driver for Kubernetes' dynamic resource allocation. One runs on each node: docs/use/kubernetes.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"google.golang.org/grpc"
	health "google.golang.org/grpc/health/grpc_health_v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/api/client"
	"github.com/gpuslice/gpuslice/kubernetes/cdi"
	"github.com/gpuslice/gpuslice/kubernetes/claim"
	"github.com/gpuslice/gpuslice/kubernetes/config"
	"github.com/gpuslice/gpuslice/kubernetes/inventory"
	"github.com/gpuslice/gpuslice/kubernetes/plugin"
)

// collectEvery is the interval of the search for abandoned claims.
const collectEvery = 30 * time.Minute

// usedEvery is the minimum time between writes of claims' usage, about as often as a kubelet renews its node's lease. It is less
// than the interval at which the enforcer is polled for the figures.
const usedEvery = 8 * time.Second

type options struct {
	kubeconfig, node, kubelet, cdiDirs, socket, hook, hookConfig, libraries, pod, live, metrics string
	offer                                                                                       inventory.Offer
}

func main() {
	var o options
	flag.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig `FILE` for the API server; \"\" in a pod")
	flag.StringVar(&o.node, "node", os.Getenv("NODE_NAME"), "`NAME` of this node (default: $NODE_NAME)")
	flag.StringVar(&o.pod, "pod-uid", os.Getenv("POD_UID"), "`UID` of the driver's pod, so that a new pod can take over from an old one (default: $POD_UID)")
	flag.StringVar(&o.kubelet, "kubelet", "/var/lib/kubelet", "the kubelet's `DIR`")
	flag.StringVar(&o.cdiDirs, "cdi", "/var/run/cdi,/etc/cdi", "`DIRS` of CDI specifications, separated by commas; those of claims are written to the first")
	flag.StringVar(&o.socket, "socket", api.DefaultSocket, "gpusliced's `SOCKET`")
	flag.StringVar(&o.hook, "hook", "/usr/local/bin/gpuslice-hook", "gpuslice-hook's `PATH` on the host")
	flag.StringVar(&o.hookConfig, "hook-config", api.DefaultConfig, "gpuslice's configuration, a `FILE` on the host")
	flag.StringVar(&o.libraries, "driver-libraries", "", "`DIR` on the host with NVIDIA's libraries, for containers on a host without NVIDIA's CDI specification")
	flag.StringVar(&o.live, "live-address", "", "`ADDRESS` of the gRPC liveness service, such as \":51515\"; \"\" for none")
	flag.StringVar(&o.metrics, "metrics-address", "", "`ADDRESS` where Prometheus finds /metrics; \"\" for none")
	flag.BoolVar(&o.offer.Elastic, "elastic", false, "publish devices for elastic claims, too (DeviceClass elastic.gpuslice.io)")
	flag.Func("default-memory", "`SIZE` of a request without one, such as \"8Gi\" (default: the whole card)", func(text string) (err error) {
		o.offer.Default, err = inventory.ParseDefault(text)
		return err
	})
	flag.Func("sizes", "publish devices of these `SIZES`, too, separated by commas, for extended resources (DeviceClass vram-8gi.gpuslice.io for \"8Gi\")", func(text string) (err error) {
		o.offer.Sizes, err = inventory.ParseSizes(text)
		return err
	})
	version := flag.Bool("version", false, "print the version")
	flag.Parse()
	if *version {
		fmt.Println("gpuslice-dra", api.Version)
		return
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o, log); err != nil {
		log.Error("ended", "err", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options, log *slog.Logger) error {
	klog.SetSlogLogger(log)
	if o.node == "" {
		return errors.New("the node's name is not known: give --node, or set NODE_NAME")
	}
	kubeConfig, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	if err != nil {
		return err
	}
	kubeConfig.UserAgent = "gpuslice-dra/" + api.Version
	kube, err := kubernetes.NewForConfig(kubeConfig)
	if err != nil {
		return err
	}
	dirs := strings.Split(o.cdiDirs, ",")
	data, registry := filepath.Join(o.kubelet, "plugins", config.Driver), filepath.Join(o.kubelet, "plugins_registry")
	for _, dir := range []string{data, dirs[0]} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	enforcer := client.New(o.socket)
	writer := &cdi.Writer{Dir: dirs[0], Hook: o.hook, Config: o.hookConfig, Libraries: o.libraries}
	preparer := &claim.Preparer{Enforcer: enforcer, Writer: writer, Host: &cdi.Host{Dirs: dirs}, Times: claim.DefaultTimes, Log: log}
	numbers := prometheus.NewRegistry()
	numbers.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	metrics := plugin.NewMetrics(numbers)
	status := &plugin.Status{Kube: kube, Node: o.node, Log: log, Every: time.Second, Claims: preparedHere(writer), Pools: enforcer.Pools, UsedEvery: usedEvery}
	driver := &plugin.Plugin{Preparer: preparer, Node: o.node, Offer: o.offer, Status: status, Metrics: metrics, Log: log, Fatal: func(err error) { cancel(err) }}
	helper, err := kubeletplugin.Start(ctx, driver,
		kubeletplugin.KubeClient(kube), kubeletplugin.NodeName(o.node), kubeletplugin.DriverName(config.Driver), kubeletplugin.Serialize(false),
		kubeletplugin.RegistrarDirectoryPath(registry), kubeletplugin.PluginDataDirectoryPath(data), kubeletplugin.RollingUpdate(types.UID(o.pod)))
	if err != nil {
		return err
	}
	defer helper.Stop()
	if err := serve(ctx, o, registry, data, numbers, cancel); err != nil {
		return err
	}

	collect := make(chan struct{}, 1)
	publisher := &inventory.Publisher{
		Enforcer: enforcer, Node: o.node, Offer: o.offer, Times: inventory.DefaultTimes, Log: log, Publish: helper.PublishResources, Written: metrics.Written,
		OnReached: func() {
			metrics.SetReached(true)
			select {
			case collect <- struct{}{}:
			default:
			}
		},
		OnHost: driver.SetHost,
		OnAway: func() {
			metrics.SetReached(false)
			driver.Away()
		},
		Event: func(e api.Event) {
			if uid := claim.ClaimOf(e.Pool); e.Kind == api.EventRefused && uid != "" {
				status.Refused(uid, e)
			}
		},
	}
	before, err := published(ctx, kube, o.node)
	if err != nil {
		return err
	}
	var all sync.WaitGroup
	all.Go(func() { status.Run(ctx) })
	all.Go(func() { publisher.Run(ctx, before) })
	all.Go(func() {
		find := func(ctx context.Context, namespace, name string) (*resourceapi.ResourceClaim, error) {
			return kube.ResourceV1().ResourceClaims(namespace).Get(ctx, name, metav1.GetOptions{})
		}
		for {
			select {
			case <-ctx.Done():
				return
			case <-collect:
			case <-time.After(collectEvery):
			}
			if err := preparer.Collect(ctx, find); err != nil && ctx.Err() == nil {
				log.Warn("collecting claims failed: trying again", "err", err)
			}
		}
	})
	all.Wait()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

func published(ctx context.Context, kube kubernetes.Interface, node string) (devices []resourceapi.Device, err error) {
	list, err := kube.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{
		FieldSelector: resourceapi.ResourceSliceSelectorNodeName + "=" + node + "," + resourceapi.ResourceSliceSelectorDriver + "=" + config.Driver,
	})
	if err != nil {
		return nil, fmt.Errorf("list the node's ResourceSlices: %w", err)
	}
	for _, s := range list.Items {
		devices = append(devices, s.Spec.Devices...)
	}
	return devices, nil
}

// preparedHere returns a function that finds a prepared claim's namespace and name by UID.
func preparedHere(w *cdi.Writer) func(types.UID) (string, string, bool) {
	return func(uid types.UID) (string, string, bool) {
		claims, _ := w.List() // a claim that cannot be listed is not found
		i := slices.IndexFunc(claims, func(c cdi.Claim) bool { return c.UID == uid && c.Name != "" })
		if i < 0 {
			return "", "", false
		}
		return claims[i].Namespace, claims[i].Name, true
	}
}

func serve(ctx context.Context, o options, registry, data string, numbers *prometheus.Registry, fail context.CancelCauseFunc) error {
	if o.live != "" {
		l, err := net.Listen("tcp", o.live)
		if err != nil {
			return err
		}
		registrar, socket := config.Driver+"-reg.sock", "dra.sock"
		if o.pod != "" {
			registrar, socket = kubeletplugin.RollingUpdateRegistrarSocketFile(registry, config.Driver, types.UID(o.pod)), "dra-"+o.pod+".sock"
		}
		live, err := plugin.NewLive(filepath.Join(registry, registrar), filepath.Join(data, socket))
		if err != nil {
			return err
		}
		s := grpc.NewServer()
		health.RegisterHealthServer(s, live)
		context.AfterFunc(ctx, s.Stop)
		go func() { fail(s.Serve(l)) }()
	}
	if o.metrics != "" {
		l, err := net.Listen("tcp", o.metrics)
		if err != nil {
			return err
		}
		mux := http.NewServeMux()
		mux.Handle("/metrics", promhttp.HandlerFor(numbers, promhttp.HandlerOpts{}))
		s := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
		context.AfterFunc(ctx, func() { _ = s.Close() })
		go func() {
			if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				fail(err)
			}
		}()
	}
	return nil
}
