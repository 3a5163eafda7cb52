// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"path/filepath"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/gpuslice/gpuslice/lease/leasepb"
)

const (
	// statsTimeout limits the queries of one scrape. A broker that does not answer in time has no series in it.
	statsTimeout = time.Second
	statsAtOnce  = 16
)

// sessions exports the statistics of each active lease's session.
type sessions struct {
	active func() []string // ids
	ask    func(ctx context.Context, id string) (*leasepb.StatsReply, error)
}

type sessionMetric struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(*leasepb.StatsReply) uint64
}

var sessionMetrics = []sessionMetric{
	sessionGauge("allocated_bytes", "Bytes that the session's clients have allocated.", (*leasepb.StatsReply).GetAllocated),
	sessionGauge("clients", "Clients that are connected to the session.", (*leasepb.StatsReply).GetClients),
	sessionCounter("requests_total", "Requests that the session has carried out.", (*leasepb.StatsReply).GetRequests),
	sessionCounter("failures_total", "Requests of the session that failed.", (*leasepb.StatsReply).GetFailures),
	sessionCounter("launches_total", "Kernels that were launched in the session.", (*leasepb.StatsReply).GetLaunches),
	sessionCounter("launch_failures_total", "Launches of the session that failed.", (*leasepb.StatsReply).GetLaunchFailures),
	sessionCounter("syncs_total", "Syncs of the session.", (*leasepb.StatsReply).GetSyncs),
	sessionCounter("sync_failures_total", "Syncs of the session that failed: a kernel before them did.", (*leasepb.StatsReply).GetSyncFailures),
	sessionCounter("frees_refused_total", "Buffers and modules that the driver did not free: they stay charged to the session until its broker exits.", (*leasepb.StatsReply).GetFreesRefused),
	sessionCounter("written_bytes_total", "Bytes that clients have written to the session's memory.", (*leasepb.StatsReply).GetWritten),
	sessionCounter("read_bytes_total", "Bytes that clients have read from the session's memory.", (*leasepb.StatsReply).GetRead),
	sessionGauge("peak_bytes", "The most that the session's clients have had allocated at one time.", (*leasepb.StatsReply).GetPeak),
}

func sessionDesc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("gpuslice_lease_session_"+name, help, []string{"lease"}, nil)
}

func sessionGauge(name, help string, value func(*leasepb.StatsReply) uint64) sessionMetric {
	return sessionMetric{sessionDesc(name, help), prometheus.GaugeValue, value}
}

func sessionCounter(name, help string, value func(*leasepb.StatsReply) uint64) sessionMetric {
	return sessionMetric{sessionDesc(name, help), prometheus.CounterValue, value}
}

// Describe implements prometheus.Collector.
func (s *sessions) Describe(to chan<- *prometheus.Desc) {
	for _, m := range sessionMetrics {
		to <- m.desc
	}
}

// Collect implements prometheus.Collector.
func (s *sessions) Collect(to chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), statsTimeout)
	defer cancel()
	var asked sync.WaitGroup
	room := make(chan struct{}, statsAtOnce)
	for _, id := range s.active() {
		room <- struct{}{}
		asked.Go(func() {
			defer func() { <-room }()
			stats, err := s.ask(ctx, id)
			if err != nil {
				return // ended, or not answering
			}
			for _, m := range sessionMetrics {
				to <- prometheus.MustNewConstMetric(m.desc, m.kind, float64(m.value(stats)), id)
			}
		})
	}
	asked.Wait()
}

func (s *Service) active() (ids []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, l := range s.leases {
		if l.serving {
			ids = append(ids, id)
		}
	}
	return ids
}

// stats queries a lease's broker, which is untrusted.
func (s *Service) stats(ctx context.Context, id string) (*leasepb.StatsReply, error) {
	connection, err := grpc.NewClient("unix:"+filepath.Join(s.dirOf(id), sessionName), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	defer func() { _ = connection.Close() }()
	return leasepb.NewSessionClient(connection).Stats(metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+s.tokenOf(id)), &leasepb.StatsRequest{})
}

// tokenOf returns the token of an active lease, from its record: opening the token file could block, since its user controls
// it.
func (s *Service) tokenOf(id string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.leases[id]; l != nil && l.serving {
		return l.Session.Token
	}
	return ""
}
