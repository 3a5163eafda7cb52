#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes an image of kubernetes/deploy/Containerfile as an OCI archive, without a container engine: the same files give the same bytes.

    image.py TARGET ARCH VERSION BIN FILE [BASE]

BIN has the programs that the Containerfile copies from bin/. BASE is an OCI archive of the image that its FROM names, unless that is scratch, or a tar
archive of such a root directory. The time of everything is SOURCE_DATE_EPOCH.
"""
import gzip
import hashlib
import io
import json
import os
import sys
import tarfile
import time

CONTAINERFILE = "kubernetes/deploy/Containerfile"
EPOCH = int(os.environ["SOURCE_DATE_EPOCH"])
OCI = "application/vnd.oci.image."


def stage(target):
    """The base, the copied files with their directory, and the entrypoint of a stage."""
    base, copies, entrypoint, name = None, [], [], None
    with open(CONTAINERFILE, encoding="utf-8") as file:
        for line in file:
            words = line.split()
            if not words or words[0].startswith("#"):
                continue
            if words[0] == "FROM" and len(words) == 4 and words[2] == "AS":
                name = words[3]
                base = words[1] if name == target else base
            elif words[0] == "COPY" and not words[1].startswith("--"):
                if name == target:
                    copies += [(source, words[-1]) for source in words[1:-1]]
            elif words[0] == "ENTRYPOINT":
                if name == target:
                    entrypoint = json.loads(line.split(None, 1)[1])
            else:
                sys.exit(f"image.py: {CONTAINERFILE}: cannot interpret {line.strip()!r}: FROM … AS …, COPY and ENTRYPOINT are known")
    if base is None:
        sys.exit(f"image.py: {CONTAINERFILE} has no target {target}")
    return base, copies, entrypoint


def put(archive, name, data, mode=0o644):
    """Adds a file to a tar archive, or a directory if data is None."""
    entry = tarfile.TarInfo(name)
    entry.mtime, entry.mode, entry.size = EPOCH, mode, len(data or b"")
    if data is None:
        entry.type = tarfile.DIRTYPE
    archive.addfile(entry, io.BytesIO(data or b""))


def layer(copies, programs):
    """The tar archive of the copied files. It has all directories above them."""
    files = {}
    for source, into in copies:
        path = os.path.join(programs, source[4:]) if source.startswith("bin/") else source
        with open(path, "rb") as file:
            mode = 0o755 if os.stat(path).st_mode & 0o100 else 0o644
            files[os.path.join(into, os.path.basename(source)).lstrip("/")] = file.read(), mode
    above = {name[:i] for name in files for i, c in enumerate(name) if c == "/"}
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name in sorted(above):
            put(archive, name, None, 0o755)
        for name in sorted(files):
            put(archive, name, *files[name])
    return out.getvalue()


class Blobs(dict):
    """Blobs by their path in an archive."""

    def add(self, kind, data):
        digest = hashlib.sha256(data).hexdigest()
        self["blobs/sha256/" + digest] = data
        return {"mediaType": OCI + kind, "digest": "sha256:" + digest, "size": len(data)}

    def add_json(self, kind, value):
        return self.add(kind, json.dumps(value, sort_keys=True).encode())


def empty(arch):
    """The configuration of an image without layers."""
    return {"architecture": arch, "os": "linux", "config": {}, "rootfs": {"type": "layers", "diff_ids": []}}


def extended(config, layers, files, blobs):
    """The layers with one more, a tar archive, which the configuration gets, too."""
    config["rootfs"]["diff_ids"].append("sha256:" + hashlib.sha256(files).hexdigest())
    return layers + [blobs.add("layer.v1.tar+gzip", gzip.compress(files, 6, mtime=0))]


def opened(base, arch, blobs):
    """The configuration and the layers of the base, whose blobs are added."""
    with tarfile.open(base) as archive:
        names = set(archive.getnames())
        if not names & {"index.json", "./index.json"}:
            config = empty(arch)
            with open(base, "rb") as file:
                return config, extended(config, [], file.read(), blobs)

        def read(name):
            for path in (name, "./" + name):
                if path in names:
                    return archive.extractfile(path).read()
            sys.exit(f"image.py: {base} is no OCI archive: it has no {name}")

        def blob(descriptor):
            return read("blobs/" + descriptor["digest"].replace(":", "/"))
        at = {"manifests": json.loads(read("index.json"))["manifests"]}
        while "manifests" in at:
            here = [m for m in at["manifests"] if m.get("platform", {}).get("architecture", arch) == arch]
            if not here:
                sys.exit(f"image.py: {base} has no image for {arch}")
            at = json.loads(blob(here[0]))
        config = json.loads(blob(at["config"]))
        if config["architecture"] != arch:
            sys.exit(f"image.py: {base} is for {config['architecture']}, not for {arch}")
        for descriptor in at["layers"]:
            blobs["blobs/" + descriptor["digest"].replace(":", "/")] = blob(descriptor)
    return config, at["layers"]


def main(target, arch, version, programs, to, base=None):
    origin, copies, entrypoint = stage(target)
    blobs = Blobs()
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(EPOCH))
    config, layers = empty(arch), []
    if origin != "scratch":
        if base is None:
            sys.exit(f"image.py: {target} is made from {origin}: give an archive of that for {arch}")
        config, layers = opened(base, arch, blobs)
    layers = extended(config, layers, layer(copies, programs), blobs)
    config["created"] = created
    config["config"].update(Entrypoint=entrypoint, Labels={
        "org.opencontainers.image.version": version, "org.opencontainers.image.licenses": "Apache-2.0",
        "org.opencontainers.image.source": "https://github.com/gpuslice/gpuslice"})
    config["config"].pop("Cmd", None)
    config.setdefault("history", []).append({"created": created, "created_by": "COPY", "comment": CONTAINERFILE})
    manifest = blobs.add_json("manifest.v1+json", {
        "schemaVersion": 2, "mediaType": OCI + "manifest.v1+json", "config": blobs.add_json("config.v1+json", config), "layers": layers})
    tag = version.replace("+", "_")  # which no tag may have
    manifest["platform"] = {"architecture": arch, "os": "linux"}
    manifest["annotations"] = {"org.opencontainers.image.ref.name": tag, "io.containerd.image.name": f"localhost/{target}:{tag}"}
    blobs["index.json"] = json.dumps({"schemaVersion": 2, "mediaType": OCI + "index.v1+json", "manifests": [manifest]}, sort_keys=True).encode()
    blobs["oci-layout"] = b'{"imageLayoutVersion": "1.0.0"}'
    with tarfile.open(to + ".new", "w", format=tarfile.USTAR_FORMAT) as archive:
        for name in sorted(blobs, reverse=True):  # oci-layout and index.json first
            put(archive, name, blobs[name])
    os.replace(to + ".new", to)


if __name__ == "__main__":
    if not 6 <= len(sys.argv) <= 7:
        sys.exit("usage: image.py TARGET ARCH VERSION BIN FILE [BASE]")
    main(*sys.argv[1:])
