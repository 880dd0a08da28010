# A node: containerd and a kubelet in a mount and a process namespace, which this script is the first process of. When one
# of them ends, or this script is killed, the kernel ends all processes of the node and drops its mounts.
#   unshare --mount --pid --fork --kill-child --mount-proc bash node.sh FOLDER CONTAINERD KUBELET [FLAG]…
set -euo pipefail
folder=$1 containerd=$2 kubelet=$3
shift 3

# Mounts of volumes must reach the containers.
mount --make-rshared /
# Both write to fixed places, too.
for place in /run /var/lib /var/log; do
  mount -t tmpfs tmpfs "$place"
done
# The kubelet sets these for the whole machine. Here, it sets copies of them.
mkdir -p "$folder/settings"
for name in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops kernel/keys/root_maxkeys kernel/keys/root_maxbytes; do
  copy=$folder/settings/${name##*/}
  cat "/proc/sys/$name" >"$copy"
  mount --bind "$copy" "/proc/sys/$name"
done

PATH=${containerd%/*}:$PATH "$containerd" --config "$folder/containerd.toml" &
until [ -S "$folder/containerd.sock" ]; do
  kill -0 $!
  sleep 0.1
done
"$kubelet" --config "$folder/kubelet.yaml" "$@" &
wait -n || true
echo "containerd or the kubelet has ended"
exit 1
