# A CSI driver with its sidecars on the machines s (server) and a (agent), for suites: images,
# objects, and what the driver and the machines report.
# usage: . tests/lib/csi.sh, after machines.sh; `peer` is set for upstream's cluster
# The sidecars are the real ones; driver and registrar are of tests/operators/programs/csi. They run
# as pods, as users run them: a DaemonSet with the registrar on all nodes and a StatefulSet with the
# other sidecars. As the driver's image of csi-driver-host-path, this one has mount, losetup and the
# programs of the file system; they are Debian's.
csi=$modules/csi storage=$scratch/storage driver=loop.csi.example.com inline=inline.csi.example.com
sidecar=registry.k8s.io/sig-storage
snapshotter=$csi/external-snapshotter/deploy/kubernetes
mkdir -p "$storage" "$scratch/inline"
archives=("$images/busybox.tar")
csi_image() { # name, program, FILE=PATH...
  local archive=$images/${2##*/}.tar
  python3 tests/lib/make-image "$archive" "$1" --entrypoint "[\"/${2##*/}\"]" \
    "$2=/${2##*/}" "${@:3}" || exit 1
  archives+=("$archive")
}
make_csi_images() {
  local tool library files=()
  for tool in mount umount losetup blkid mkfs.ext4 e2fsck resize2fs; do
    command -v "$tool" >/dev/null || skip "$tool is missing"
    tool=$(command -v "$tool")
    files+=("$(realpath "$tool")=/bin/${tool##*/}")
    while read -r library; do files+=("$(realpath "$library")=$library"); done < <(
      ldd "$tool" | grep -oE '/[^ ]+'
    )
  done
  [ ! -e /etc/mke2fs.conf ] || files+=(/etc/mke2fs.conf=/etc/mke2fs.conf)
  mapfile -t files < <(printf '%s\n' "${files[@]}" | sort -u)
  csi_image example.com/csi-driver:1 "$csi/bin/csi-driver" "${files[@]}"
  csi_image example.com/csi-node-driver-registrar:1 "$csi/bin/csi-node-driver-registrar"
  csi_image "$sidecar/csi-provisioner:v6.3.0" "$csi/bin/csi-provisioner"
  csi_image "$sidecar/csi-attacher:v4.12.0" "$csi/bin/csi-attacher"
  csi_image "$sidecar/csi-resizer:v2.2.0" "$csi/bin/csi-resizer"
  csi_image "$sidecar/csi-snapshotter:v8.6.0" "$csi/bin/csi-snapshotter"
  csi_image "$sidecar/snapshot-controller:v8.6.0" "$csi/bin/snapshot-controller"
}
# The kubelet's folder is where manifests of drivers have it, on the disk of the machine. Mounts of
# a machine are private, as without systemd: the kubelet makes its folder a shared one. A mount that
# a kubelet has left on the host would be listed in the machine below the folder of the machine, and
# containerd takes any mount with that path for the one that a path is on.
kubelet_folder() { # of the current machine
  while inside mountpoint -q /var/lib/kubelet; do inside umount -l /var/lib/kubelet; done
  mkdir -p "$node_home/lib" && inside mount --bind "$node_home/lib" /var/lib
}
csi_machine() { machine "$1"; on "$1"; kubelet_folder || exit 1; } # name
[ -n "$peer" ] || node_kubelet=/var/lib/kubelet
if [ -n "$peer" ]; then
  # Upstream's cluster needs the images of CoreDNS and of sandboxes.
  repository=$PWD out=$scratch/logs cache=${XDG_CACHE_HOME:-$HOME/.cache}/kube-lite
  upstream=$(tests/conformance/upstream/build) || exit 1
  archives+=("$images/coredns.tar" "$cache/conformance/images.tar")
  python3 tests/lib/make-image "$images/coredns.tar" registry.k8s.io/coredns/coredns:v1.15.0 \
    --entrypoint '["/coredns"]' "$upstream/coredns=/coredns" || exit 1
  mkdir -p "$out"
  . tests/conformance/upstream/cluster.sh
  upstream_disk() { inside mount -t tmpfs -o size=1g,mode=755 machine /var/log; }
fi
node_flags=() # of kube-lite on both machines
start_cluster() { # s and a, Ready
  if [ -n "$peer" ]; then start_upstream s a; return; fi
  start_server_on s --fast-node-loss "${node_flags[@]}"
  start_agent_on a "${node_flags[@]}"
  agents_ready a >/dev/null || { echo "FAIL the agent is not Ready"; exit 1; }
}
# The programs of a machine that a kill -9 of kube-lite ends; containers and containerd stay.
kill_node() { # machine
  on "$1"
  if [ -z "$peer" ]; then kill_server KILL; return; fi
  # shellcheck disable=SC2046
  kill -9 $(running "kubelet --config=$scratch/$1/kubelet.yaml *"
    [ "$1" != s ] || running 'kube-controller-manager *')
}
start_node_again() { # machine
  on "$1"
  if [ -n "$peer" ]; then
    part kubelet kubelet --config="$scratch/$1/kubelet.yaml" --kubeconfig="$keys/$1.yaml" \
      --root-dir=/var/lib/kubelet --cert-dir=/var/lib/kubelet/pki --hostname-override="$1" \
      --node-ip="$node_ip"
  elif [ "$1" = s ]; then start_server_on s --fast-node-loss "${node_flags[@]}"
  else start_agent_on "$1" "${node_flags[@]}"; fi
  on s
}
return_machine() { # name: boots a machine that was off; its programs start
  boot "$1"; on "$1"; kubelet_folder
  if [ -n "$peer" ]; then
    upstream_disk; start_upstream_node "$1" "$keys/$1.yaml" "$keys/proxy.yaml"
    upstream_pod_network "$1"
  else start_agent_on "$1"; fi
  on s
}

csi_objects() {
  local role
  for role in "$csi"/external-{provisioner,attacher,resizer}/deploy/kubernetes/rbac.yaml \
    "$snapshotter/csi-snapshotter/rbac-csi-snapshotter.yaml"; do
    echo ---
    sed 's/namespace: default/namespace: csi/' "$role"
  done
  for role in provisioner attacher resizer snapshotter; do
    printf -- '---\napiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRoleBinding\nmetadata: {name: csi-loop-%s}\nroleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: external-%s-runner}\nsubjects: [{kind: ServiceAccount, name: csi-loop, namespace: csi}]\n' \
      $role $role
  done
  for role in provisioner-cfg attacher-cfg resizer-cfg snapshotter-leaderelection; do
    printf -- '---\napiVersion: rbac.authorization.k8s.io/v1\nkind: RoleBinding\nmetadata: {name: csi-loop-%s, namespace: csi}\nroleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: external-%s}\nsubjects: [{kind: ServiceAccount, name: csi-loop, namespace: csi}]\n' \
      $role $role
  done
  cat <<Y
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: csi-loop, namespace: csi}
---
apiVersion: v1
kind: Secret
metadata: {name: volume-key, namespace: csi}
stringData: {passphrase: open}
---
apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {name: $driver}
spec: {attachRequired: true, podInfoOnMount: false, volumeLifecycleModes: [Persistent]}
---
apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {name: $inline}
spec:
  attachRequired: false
  podInfoOnMount: true
  requiresRepublish: true
  fsGroupPolicy: File
  volumeLifecycleModes: [Ephemeral]
  tokenRequests: [{audience: storage, expirationSeconds: 600}]
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: loop}
provisioner: $driver
parameters: {csi.storage.k8s.io/fstype: ext4}
allowVolumeExpansion: true
mountOptions: [noatime, commit=30]
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: late}
provisioner: $driver
volumeBindingMode: WaitForFirstConsumer
parameters:
  csi.storage.k8s.io/node-stage-secret-name: volume-key
  csi.storage.k8s.io/node-stage-secret-namespace: csi
---
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshotClass
metadata: {name: loop}
driver: $driver
deletionPolicy: Delete
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: csi-loop-controller, namespace: csi}
spec:
  serviceName: csi-loop-controller
  selector: {matchLabels: {app: csi-loop-controller}}
  template:
    metadata: {labels: {app: csi-loop-controller}}
    spec:
      serviceAccountName: csi-loop
      nodeSelector: {kubernetes.io/hostname: s}
      tolerations: [{operator: Exists}]
      terminationGracePeriodSeconds: 2
      containers:
      - name: driver
        image: example.com/csi-driver:1
        args: [-name=$driver, -node-id=controller, -zone=z1, -max-volumes=8]
        volumeMounts: [{name: socket, mountPath: /csi}, {name: storage, mountPath: /storage}]
      - name: csi-provisioner
        image: $sidecar/csi-provisioner:v6.3.0
        args: [--csi-address=/csi/csi.sock, --feature-gates=Topology=true, --leader-election, --v=5]
        volumeMounts: [{name: socket, mountPath: /csi}]
      - name: csi-attacher
        image: $sidecar/csi-attacher:v4.12.0
        args: [--csi-address=/csi/csi.sock, --v=5]
        volumeMounts: [{name: socket, mountPath: /csi}]
      - name: csi-resizer
        image: $sidecar/csi-resizer:v2.2.0
        args: [--csi-address=/csi/csi.sock, --v=5]
        volumeMounts: [{name: socket, mountPath: /csi}]
      - name: csi-snapshotter
        image: $sidecar/csi-snapshotter:v8.6.0
        args: [--csi-address=/csi/csi.sock, --v=5]
        volumeMounts: [{name: socket, mountPath: /csi}]
      volumes:
      - {name: socket, emptyDir: {}}
      - {name: storage, hostPath: {path: $storage, type: Directory}}
---
$(csi_daemonset csi-loop "$storage" -name=$driver -zone=z1 -max-volumes=8)
---
$(csi_daemonset csi-inline "$scratch/inline" -name=$inline -inline)
Y
}
csi_daemonset() { # name, storage folder, flags of the driver...
  local flags; flags=$(printf ', %s' "${@:3}")
  cat <<Y
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: $1, namespace: csi}
spec:
  selector: {matchLabels: {app: $1}}
  template:
    metadata: {labels: {app: $1}}
    spec:
      tolerations: [{operator: Exists}]
      terminationGracePeriodSeconds: 2
      containers:
      - name: driver
        image: example.com/csi-driver:1
        args: [-node-id=\$(NODE)$flags]
        env: [{name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}]
        securityContext: {privileged: true}
        volumeMounts:
        - {name: socket, mountPath: /csi}
        - {name: pods, mountPath: /var/lib/kubelet/pods, mountPropagation: Bidirectional}
        - {name: plugins, mountPath: /var/lib/kubelet/plugins, mountPropagation: Bidirectional}
        - {name: dev, mountPath: /dev}
        - {name: storage, mountPath: /storage}
      - name: node-driver-registrar
        image: example.com/csi-node-driver-registrar:1
        args: [-csi-address=/csi/csi.sock, -kubelet-registration-path=/var/lib/kubelet/plugins/$1/csi.sock]
        volumeMounts: [{name: socket, mountPath: /csi}, {name: registration, mountPath: /registration}]
      volumes:
      - {name: socket, hostPath: {path: /var/lib/kubelet/plugins/$1, type: DirectoryOrCreate}}
      - {name: registration, hostPath: {path: /var/lib/kubelet/plugins_registry, type: Directory}}
      - {name: pods, hostPath: {path: /var/lib/kubelet/pods, type: DirectoryOrCreate}}
      - {name: plugins, hostPath: {path: /var/lib/kubelet/plugins, type: Directory}}
      - {name: dev, hostPath: {path: /dev, type: Directory}}
      - {name: storage, hostPath: {path: $2, type: Directory}}
Y
}
install_csi() {
  local crds=$csi/client/config/crd
  k create namespace csi &&
    k create -f "$crds/snapshot.storage.k8s.io_volumesnapshotclasses.yaml" \
      -f "$crds/snapshot.storage.k8s.io_volumesnapshotcontents.yaml" \
      -f "$crds/snapshot.storage.k8s.io_volumesnapshots.yaml" &&
    k wait --for=condition=Established crd/volumesnapshotclasses.snapshot.storage.k8s.io \
      --timeout=30s &&
    sed "s|image: .*snapshot-controller:.*|image: $sidecar/snapshot-controller:v8.6.0|" \
      "$snapshotter"/snapshot-controller/{rbac,setup}-snapshot-controller.yaml | k apply -f - &&
    csi_objects | k apply -f -
}

# What is left of CSI volumes on a machine.
csi_mounts() { # machine
  grep -c 'kubernetes\.io[~/]csi\|volume-subpaths' "/proc/${machine_first[$1]}/mountinfo"
}
# Loop devices with a file of the suite's file system; the kernel shares them between all machines.
scratch_device=$(awk -v path="$scratch" '$5 == path { print $3 }' /proc/self/mountinfo)
loop_devices() {
  losetup -l -n -O NAME,BACK-MAJ:MIN | awk -v device="$scratch_device" '$2 == device { print $1 }'
}
calls() { # volume id, node: its calls with their codes, without those that repeat
  awk -v id="$1" -v node="$2" '$3 == id && $1 == node && $2 !~ /Stats/ { print $2 ":" $4 }' \
    "$storage/calls" | uniq | xargs
}
count() { # volume id, method, code
  awk -v id="$1" -v method="$2" -v code="$3" '$3 == id && $2 == method && $4 == code' \
    "$storage/calls" | wc -l
}
fault() { # method, text: calls of this method fail or wait (tests/operators/programs/csi/main.go)
  echo "$2" >"$storage/faults/.new" && mv "$storage/faults/.new" "$storage/faults/$1"
}
heal_fault() { rm "$storage/faults/$1"; } # method
