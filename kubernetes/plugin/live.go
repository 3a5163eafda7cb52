// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	health "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	dra "k8s.io/kubelet/pkg/apis/dra/v1"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// Live answers a pod's gRPC liveness probe by calling the driver's own sockets as the kubelet does. It ignores the enforcer,
// since restarting the driver would not help.
type Live struct {
	health.UnimplementedHealthServer
	registrar, plugin *grpc.ClientConn
}

// NewLive returns a Live for the sockets at these paths. It does no I/O.
func NewLive(registrar, plugin string) (*Live, error) {
	l := &Live{}
	var err error
	if l.registrar, err = grpc.NewClient("unix://"+registrar, grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
		return nil, err
	}
	l.plugin, err = grpc.NewClient("unix://"+plugin, grpc.WithTransportCredentials(insecure.NewCredentials()))
	return l, err
}

// Check implements health.HealthServer.
func (l *Live) Check(ctx context.Context, r *health.HealthCheckRequest) (*health.HealthCheckResponse, error) {
	if s := r.GetService(); s != "" && s != "liveness" {
		return nil, status.Errorf(codes.NotFound, "service %q is unknown: \"\" and \"liveness\" are accepted", s)
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	answer := &health.HealthCheckResponse{Status: health.HealthCheckResponse_NOT_SERVING}
	if _, err := registration.NewRegistrationClient(l.registrar).GetInfo(ctx, &registration.InfoRequest{}); err != nil {
		return answer, nil
	}
	if _, err := dra.NewDRAPluginClient(l.plugin).NodePrepareResources(ctx, &dra.NodePrepareResourcesRequest{}); err != nil {
		return answer, nil
	}
	answer.Status = health.HealthCheckResponse_SERVING
	return answer, nil
}
