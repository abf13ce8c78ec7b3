# A clean Debian: the package is installed, runs a pod, and is removed without a trace.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp/home DEBIAN_FRONTEND=noninteractive
mkdir "$HOME"
files() {
  find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /tmp -o -path /run -o -path /root/.kube -o -path /var/lib/dpkg -o -path /var/log/dpkg.log \) \
    -prune -o -print | sort
}
files >/tmp/before
dpkg --install /tmp/mainstay.deb
mount --bind /tmp/binary /usr/bin/mainstay
test "$(readlink /usr/bin/kubectl)" = mainstay
# A disk of the host that is nearly full is no matter of this story.
printf 'apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nevictionHard: {memory.available: 50Mi, nodefs.available: 1%%}\n' >/tmp/kubelet.yaml

mainstay up --detach --kubelet-config /tmp/kubelet.yaml
export KUBECONFIG=/root/.kube/config
test "$(kubectl config current-context)" = mainstay
kubectl create deployment web --image mainstay.local/hello
kubectl expose deployment web --port 80 --target-port 8080
kubectl rollout status deployment/web --timeout 90s
kubectl exec deployment/web -- /mainstay hello get http://web/
mainstay status || true
mainstay down
mainstay reset --yes
umount /usr/bin/mainstay
if grep --quiet 'name: mainstay' /root/.kube/config; then cat /root/.kube/config; exit 1; fi

dpkg --purge mainstay
files >/tmp/after
diff /tmp/before /tmp/after
echo 'nothing stays'
