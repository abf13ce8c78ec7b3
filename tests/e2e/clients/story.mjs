// The JavaScript client against a real cluster.
import assert from 'node:assert/strict';
import { PassThrough } from 'node:stream';
import * as k8s from '@kubernetes/client-node';

const config = new k8s.KubeConfig();
config.loadFromDefault();
const core = config.makeApiClient(k8s.CoreV1Api);
const namespace = 'default';
const labels = { story: 'javascript' };
const labelSelector = 'story=javascript';

async function objects() {
  for (let n = 0; n < 5; n++) {
    const body = { metadata: { name: `js-${n}`, labels }, data: { n: String(n) } };
    await core.createNamespacedConfigMap({ namespace, body });
  }
  const seen = [];
  let _continue;
  do {
    const page = await core.listNamespacedConfigMap({ namespace, labelSelector, limit: 2, _continue });
    seen.push(...page.items.map((item) => item.metadata.name));
    _continue = page.metadata._continue;
  } while (_continue);
  assert.deepEqual(seen, [0, 1, 2, 3, 4].map((n) => `js-${n}`));

  const patch = (body, strategy) =>
    core.patchNamespacedConfigMap(
      { namespace, name: 'js-0', body },
      k8s.setHeaderOptions('Content-Type', strategy),
    );
  let map = await patch({ data: { merged: 'yes' } }, k8s.PatchStrategy.MergePatch);
  assert.deepEqual(map.data, { n: '0', merged: 'yes' });
  map = await patch({ data: { merged: null } }, k8s.PatchStrategy.StrategicMergePatch);
  assert.deepEqual(map.data, { n: '0' });
  map = await patch([{ op: 'replace', path: '/data/n', value: 'zero' }], k8s.PatchStrategy.JsonPatch);
  assert.deepEqual(map.data, { n: 'zero' });
}

async function watching() {
  const events = [];
  let seen;
  const done = new Promise((resolve) => { seen = resolve; });
  const path = `/api/v1/namespaces/${namespace}/configmaps`;
  const watch = await new k8s.Watch(config).watch(path, { labelSelector }, (type, object) => {
    events.push(`${type} ${object.metadata.name}`);
    if (type === 'DELETED') seen();
  }, () => {});
  await core.deleteNamespacedConfigMap({ namespace, name: 'js-1' });
  await done;
  assert.equal(events.at(-1), 'DELETED js-1');
  watch.abort();
  await core.deleteCollectionNamespacedConfigMap({ namespace, labelSelector });
}

async function pods() {
  const body = {
    metadata: { name: 'js-box' },
    spec: {
      terminationGracePeriodSeconds: 0,
      containers: [{
        name: 'box', image: 'local.test/busybox:1', imagePullPolicy: 'Never',
        command: ['/bin/busybox', 'sh', '-c', 'echo hello from the pod; exec /bin/busybox sleep 1000'],
      }],
    },
  };
  await core.createNamespacedPod({ namespace, body });
  const until = async (what, look) => {
    for (let round = 0; round < 300; round++) {
      if (await look()) return;
      await new Promise((resolve) => setTimeout(resolve, 100));
    }
    assert.fail(what);
  };
  await until('the pod runs', async () => {
    const pod = await core.readNamespacedPod({ namespace, name: 'js-box' });
    return pod.status.phase === 'Running';
  });
  await until('the log comes', async () => {
    const log = await core.readNamespacedPodLog({ namespace, name: 'js-box' });
    return log === 'hello from the pod\n';
  });
  const [stdout, stdin] = [new PassThrough(), new PassThrough()];
  let out = '';
  stdout.on('data', (chunk) => { out += chunk; });
  const command = ['/bin/busybox', 'sh', '-c', 'read word; echo got $word; exit 7'];
  const status = await new Promise((resolve, reject) => {
    new k8s.Exec(config)
      .exec(namespace, 'js-box', 'box', command, stdout, null, stdin, false, resolve)
      .catch(reject);
    stdin.write('it\n');
  });
  assert.equal(out, 'got it\n');
  assert.equal(status.status, 'Failure');
  assert.equal(status.details.causes[0].message, '7');
  await core.deleteNamespacedPod({ namespace, name: 'js-box' });
}

await objects();
await watching();
await pods();
console.log('the JavaScript story holds');
process.exit(0);
