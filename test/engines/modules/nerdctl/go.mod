module github.com/gpuslice/gpuslice/test/engines/modules/nerdctl

go 1.26.0

require github.com/containerd/nerdctl/v2 v2.0.4
