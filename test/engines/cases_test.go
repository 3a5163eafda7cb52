//go:build engines

// SPDX-License-Identifier: Apache-2.0

package engines

type testcase struct {
	name  string // of the sub-test
	title string // in the table
	run   func(s *site)
	needs func(e engine) string // why the engine lacks it; "" if it has it
}

var cases = []testcase{
	{name: "quota", title: "one quota for all processes and `exec`", run: quotaIsShared},
	{name: "refusals", title: "bad annotations: gpuslice's message is shown", run: refusalsAreShown},
	{name: "names", title: "shown with its name and image", run: namesAreShown, needs: skipWithoutNames},
	{name: "documents", title: "commands of the documents, and what they print", run: documentsAreTrue, needs: hasDocuments},
	{name: "restart", title: "restart under the same id", run: restartKeepsTheQuota, needs: restarts},
	{name: "pause", title: "paused: keeps what it holds", run: pausedKeeps, needs: pauses},
	{name: "kill-init", title: "kill -9 of the container's init", run: initIsKilled},
	{name: "kill-shim", title: "kill -9 of the shim", run: shimIsKilled, needs: hasShim},
	{name: "kill-containerd", title: "kill -9 of containerd", run: containerdIsKilled, needs: hasDaemon("containerd")},
	{name: "kill-crio", title: "kill -9 of CRI-O", run: crioIsKilled, needs: hasDaemon("crio")},
	{name: "kill-dockerd", title: "kill -9 of dockerd, live-restore", run: dockerdIsKilled, needs: hasDaemon("dockerd")},
	{name: "kill-runtime", title: "kill -9 of the runtime within a hook", run: runtimeIsKilled},
	{name: "setuid", title: "Debian, setuid `su`", run: setuidWorks},
	{name: "busybox", title: "static busybox", run: imageIsLeftAlone("busybox")},
	{name: "musl", title: "musl", run: imageIsLeftAlone("musl")},
	{name: "read-only", title: "read-only root", run: readOnlyRoot},
	{name: "userns", title: "user namespace", run: userNamespace, needs: hasUserns},
	{name: "host-pid", title: "host's pid namespace", run: hostPID},
	{name: "privileged", title: "privileged", run: privileged},
	{name: "etc-bound", title: "host directory on /etc: refused, unchanged", run: etcIsBound},
	{name: "churn", title: "200 containers, random kills", run: churn},
	{name: "nvidia-cdi", title: "NVIDIA: `--device nvidia.com/gpu=0`", run: cdiByEngine, needs: hasWay(byCDI)},
	{name: "nvidia-gpus", title: "NVIDIA: `--gpus`; Podman: its hook in hooks.d", run: gpusFlag, needs: hasWay(byHook, byFlag)},
	{name: "nvidia-inside", title: "gpuslice-runtime, then nvidia-container-runtime", run: nvidiaInside, needs: hasWay(inside + modeCDI)},
	{name: "nvidia-outside", title: "nvidia-container-runtime, then gpuslice-runtime", run: nvidiaOutside, needs: hasWay(outside + modeCDI)},
	{name: "nvidia-loop", title: "each runtime wraps the other: gpuslice's message", run: runtimesLoop, needs: hasWay(loop + "gpuslice-runtime")},
	{name: "pod", title: "pod of two containers: a quota each, none for the sandbox", run: podOfTwo, needs: hasPods},
	{name: "pod-annotations", title: "annotations of pod and container, and handlers that drop them", run: podAnnotations, needs: hasPods},
	{name: "pod-restart", title: "restart within a pod", run: podRestarts, needs: hasPods},
	{name: "pod-shim", title: "kill -9 of a pod's shim", run: podShimIsKilled, needs: hasShimOfPods},
	{name: "pod-runc", title: "handler of runc's shim with gpuslice-runtime", run: podOfRuncsShim, needs: hasShimOfPods},
	{name: "pod-systemd", title: "`SystemdCgroup` reaches runc", run: podSystemd, needs: hasShimOfPods},
	{name: "docker-shim", title: "our shim, with and without options", run: dockerByShim, needs: hasShims},
	{name: "docker-stop", title: "`docker stop`: SIGTERM, then SIGKILL", run: dockerStops, needs: isDocker},
	{name: "docker-update", title: "`docker update`", run: dockerUpdates, needs: isDocker},
	{name: "docker-init", title: "`docker run --init`", run: dockerInit, needs: isDocker},
	{name: "docker-namespaces", title: "another container's pid and ipc namespace; `--cgroupns`", run: dockerNamespaces, needs: isDocker},
	{name: "docker-commit", title: "`docker diff`, `docker commit`, and the image made", run: dockerCommits, needs: isDocker},
	{name: "docker-cp", title: "`docker cp`", run: dockerCopies, needs: isDocker},
	{name: "docker-health", title: "health checks", run: dockerHealth, needs: isDocker},
	{name: "docker-restart", title: "`--restart always`", run: dockerRestarts, needs: isDocker},
	{name: "docker-default", title: "gpuslice as default-runtime", run: dockerByDefault, needs: isDocker},
	{name: "docker-nested", title: "Docker in Docker, with a gpuslice of its own", run: dockerInDocker, needs: isNewDocker},
	{name: "docker-variables", title: "Docker without annotations: variables, an image's too, and the refusal's advice", run: dockerVariables, needs: isOldDocker},
	{name: "exec-cgroup", title: "`exec` before `start`, and into other cgroups", run: execElsewhere, needs: isByHand},
	{name: "rootless", title: "rootless: refused; in a session, the session's", run: rootlessContainers, needs: hasRootless},
	{name: "attached", title: "`run --rm`, with and without a terminal", run: attachedRun, needs: hasForeground},
	{name: "kill-shims", title: "kill -9 of two shims at once", run: shimsAreKilled, needs: isCtr},
	{name: "kill-both", title: "kill -9 of containerd, then of the shim", run: shimIsKilledAlone, needs: isCtr},
	{name: "kill-creating", title: "kill -9 of containerd within a hook", run: containerdIsKilledCreating, needs: isCtr},
	{name: "shim-options", title: "the shim's options reach runc", run: shimOptions, needs: isCtr},
	{name: "namespaces", title: "the same id in two namespaces of containerd", run: sameIDElsewhere, needs: isCtr},
}
