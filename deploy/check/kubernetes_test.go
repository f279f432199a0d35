package check

import (
	"bytes"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hookferry/analytics"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// secrets is the folder of the container with the files of the Secret.
const secrets = "/etc/hookferry/secret/"

// A manifest has the objects of a file for Kubernetes.
type manifest struct {
	text     string
	config   corev1.ConfigMap
	service  corev1.Service
	budget   policyv1.PodDisruptionBudget
	workload string // kind of the object with the pods
	selector *metav1.LabelSelector
	pod      corev1.PodTemplateSpec
	claims   []corev1.PersistentVolumeClaim
}

// readManifest reads a file. The test fails if an object has an unknown field, or a field twice.
func readManifest(t *testing.T, file string) *manifest {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	m := &manifest{text: string(text)}
	for i, document := range bytes.Split(text, []byte("\n---\n")) {
		var kind metav1.TypeMeta
		if err := yaml.Unmarshal(document, &kind); err != nil {
			t.Fatalf("%s: document %d: %v", file, i, err)
		}
		var set appsv1.StatefulSet
		var deployment appsv1.Deployment
		var into any
		switch kind.APIVersion + " " + kind.Kind {
		case "v1 ConfigMap":
			into = &m.config
		case "v1 Service":
			into = &m.service
		case "policy/v1 PodDisruptionBudget":
			into = &m.budget
		case "apps/v1 StatefulSet":
			into = &set
		case "apps/v1 Deployment":
			into = &deployment
		default:
			t.Fatalf("%s: document %d: this test does not know a %s of %s", file, i, kind.Kind, kind.APIVersion)
		}
		text, err := yaml.YAMLToJSONStrict(document)
		if err != nil {
			t.Fatalf("%s: %s: %v", file, kind.Kind, err)
		}
		// The API server decodes fields in the same way: it does not accept
		// readOnlyRootFileSystem for readOnlyRootFilesystem.
		if wrong, err := json.UnmarshalStrict(text, into); err != nil || len(wrong) > 0 {
			t.Fatalf("%s: %s: %v %v", file, kind.Kind, wrong, err)
		}
		switch kind.Kind {
		case "StatefulSet":
			m.workload, m.selector, m.pod, m.claims = kind.Kind, set.Spec.Selector, set.Spec.Template, set.Spec.VolumeClaimTemplates
			if set.Spec.ServiceName != m.service.Name {
				t.Errorf("%s: the StatefulSet names the service %q, want %q", file, set.Spec.ServiceName, m.service.Name)
			}
		case "Deployment":
			m.workload, m.selector, m.pod = kind.Kind, deployment.Spec.Selector, deployment.Spec.Template
		}
	}
	return m
}

// write writes the configuration to a folder of the test, with its secrets, and returns the path.
// It replaces texts in the configuration, as strings.NewReplacer does.
func (m *manifest) write(t *testing.T, replace ...string) string {
	t.Helper()
	dir := t.TempDir()
	text := m.config.Data["hookferry.yaml"]
	if text == "" {
		t.Fatal("the ConfigMap has no hookferry.yaml")
	}
	named := regexp.MustCompile(regexp.QuoteMeta("file:"+secrets)+`([a-z-]+)`).FindAllStringSubmatch(text, -1)
	for _, n := range named {
		value := "0123456789abcdef"
		if n[1] == "database-url" {
			value = "postgres://hookferry:pa55@localhost:1/hookferry"
		}
		if err := os.WriteFile(filepath.Join(dir, n[1]), []byte(value), 0o600); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(m.text, "--from-literal="+n[1]+"=") {
			t.Errorf("the command in the comment at the top does not make the secret %s", n[1])
		}
	}
	if made := strings.Count(m.text, "--from-literal="); made != len(named) {
		t.Errorf("the command in the comment at the top makes %d secrets, and the configuration names %d, want as many", made, len(named))
	}
	path := filepath.Join(dir, "hookferry.yaml")
	text = strings.NewReplacer(append([]string{secrets, dir + "/"}, replace...)...).Replace(text)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestKubernetesManifestsAreValidAndServe(t *testing.T) {
	files, err := filepath.Glob("../kubernetes/*.yaml")
	if err != nil || len(files) != 2 {
		t.Fatalf("files: %q, %v, want two", files, err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			m := readManifest(t, file)
			if len(m.pod.Spec.Containers) != 1 {
				t.Fatalf("%d containers, want one", len(m.pod.Spec.Containers))
			}
			c := m.pod.Spec.Containers[0]
			checkArguments(t, c.Args)
			if want := "ghcr.io/hookferry/hookferry:" + analytics.Version; c.Image != want {
				t.Errorf("the image is %s, want %s", c.Image, want)
			}
			t.Run("selectors", func(t *testing.T) { checkSelectors(t, m) })
			t.Run("mounts", func(t *testing.T) { checkMounts(t, m, c) })
			t.Run("security", func(t *testing.T) { checkSecurity(t, m.pod.Spec, c) })
			t.Run("config", func(t *testing.T) { checkConfig(t, m, c) })
			t.Run("probes", func(t *testing.T) { checkProbes(t, m, c) })
			for _, list := range []corev1.ResourceList{c.Resources.Requests, c.Resources.Limits} {
				if list.Cpu().IsZero() || list.Memory().IsZero() {
					t.Error("the container lacks a request or a limit of CPU or memory")
				}
			}
		})
	}
}

func checkSelectors(t *testing.T, m *manifest) {
	for what, selector := range map[string]*metav1.LabelSelector{
		m.workload: m.selector, "PodDisruptionBudget": m.budget.Spec.Selector, "Service": {MatchLabels: m.service.Spec.Selector},
	} {
		s, err := metav1.LabelSelectorAsSelector(selector)
		if err != nil || s.Empty() || !s.Matches(labels.Set(m.pod.Labels)) {
			t.Errorf("the %s does not select the pods: %v, %v", what, s, err)
		}
	}
	if m.budget.Spec.MaxUnavailable == nil || m.budget.Spec.MaxUnavailable.IntValue() != 1 {
		t.Error("the PodDisruptionBudget does not allow that one pod is missing")
	}
}

// checkMounts checks that each mount has a volume, and that the volumes are the ConfigMap, the
// Secret and the claims.
func checkMounts(t *testing.T, m *manifest, c corev1.Container) {
	volumes := map[string]bool{}
	for _, claim := range m.claims {
		volumes[claim.Name] = true
	}
	for _, v := range m.pod.Spec.Volumes {
		volumes[v.Name] = true
		switch {
		case v.ConfigMap != nil && v.ConfigMap.Name == m.config.Name:
		case v.Secret != nil && v.Secret.SecretName == "hookferry" && v.Secret.DefaultMode != nil && *v.Secret.DefaultMode == 0o440:
		default:
			t.Errorf("the volume %s is neither the ConfigMap nor the Secret with mode 0440", v.Name)
		}
	}
	var paths []string
	for _, mount := range c.VolumeMounts {
		if !volumes[mount.Name] {
			t.Errorf("the mount %s has no volume", mount.Name)
		}
		paths = append(paths, mount.MountPath+"/")
	}
	data := regexp.MustCompile(`(?m)^data: (.*)$`).FindStringSubmatch(m.config.Data["hookferry.yaml"])
	wanted := []string{secrets, c.Args[slices.Index(c.Args, "--config")+1]}
	if data != nil {
		wanted = append(wanted, data[1])
	} else if m.workload == "StatefulSet" {
		t.Error("the configuration of the StatefulSet names no folder for the data")
	}
	for _, path := range wanted {
		if !slices.ContainsFunc(paths, func(mount string) bool { return strings.HasPrefix(path, mount) }) {
			t.Errorf("no mount has the path %s", path)
		}
	}
}

func checkSecurity(t *testing.T, pod corev1.PodSpec, c corev1.Container) {
	is := func(b *bool, want bool) bool { return b != nil && *b == want }
	p, s := pod.SecurityContext, c.SecurityContext
	if p == nil || s == nil || s.Capabilities == nil {
		t.Fatal("a securityContext is missing")
	}
	const user = 65532 // the user of the Dockerfile
	for what, ok := range map[string]bool{
		"runAsNonRoot":             is(p.RunAsNonRoot, true),
		"runAsUser":                p.RunAsUser != nil && *p.RunAsUser == user,
		"fsGroup":                  p.FSGroup != nil && *p.FSGroup == user,
		"seccompProfile":           p.SeccompProfile != nil && p.SeccompProfile.Type == corev1.SeccompProfileTypeRuntimeDefault,
		"readOnlyRootFilesystem":   is(s.ReadOnlyRootFilesystem, true),
		"allowPrivilegeEscalation": is(s.AllowPrivilegeEscalation, false),
		"capabilities":             slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) && len(s.Capabilities.Add) == 0,
		"service account":          is(pod.AutomountServiceAccountToken, false),
	} {
		if !ok {
			t.Errorf("%s is missing or not secure", what)
		}
	}
}

// checkConfig runs hookferry config check on the configuration, and compares the pod with it.
func checkConfig(t *testing.T, m *manifest, c corev1.Container) {
	out, err := exec.Command(program, "config", "check", m.write(t)).CombinedOutput()
	if err != nil {
		t.Fatalf("config check: %v\n%s", err, out)
	}
	var config struct {
		Listen       string
		Drain, Grace string
		Admin        struct{ Listen string }
	}
	if err := yaml.Unmarshal([]byte(m.config.Data["hookferry.yaml"]), &config); err != nil {
		t.Fatal(err)
	}
	var stop time.Duration
	for _, text := range []string{config.Drain, config.Grace} {
		d, err := time.ParseDuration(text)
		if err != nil {
			t.Errorf("drain or grace: %v", err)
		}
		stop += d
	}
	var given time.Duration
	if seconds := m.pod.Spec.TerminationGracePeriodSeconds; seconds != nil {
		given = time.Duration(*seconds) * time.Second
	}
	if least := stop + 5*time.Second; given < least {
		t.Errorf("the pod has %v to stop, want at least %v, as the server takes up to %v", given, least, stop)
	}
	ports := map[string]string{}
	for _, p := range c.Ports {
		ports[p.Name] = ":" + strconv.Itoa(int(p.ContainerPort))
	}
	if ports["calls"] != config.Listen || ports["admin"] != config.Admin.Listen || len(ports) != 2 {
		t.Errorf("the container has the ports %v, want those that the server listens on, %s and %s", ports, config.Listen, config.Admin.Listen)
	}
	for _, p := range m.service.Spec.Ports {
		if ports[p.TargetPort.String()] == "" {
			t.Errorf("the service has the port %s, which the container lacks", p.TargetPort.String())
		}
	}
}

// checkProbes starts a server with the configuration and the file store. It sends the requests of
// the probes.
func checkProbes(t *testing.T, m *manifest, c corev1.Container) {
	config := m.write(t, "/data/hookferry", filepath.Join(t.TempDir(), "data"),
		"queue:\n  url: file:"+secrets+"database-url\n", "data: "+filepath.Join(t.TempDir(), "data")+"\n")
	calls, admin := start(t, nil, "serve", "--config", config)
	for name, probe := range map[string]*corev1.Probe{"startup": c.StartupProbe, "liveness": c.LivenessProbe, "readiness": c.ReadinessProbe} {
		if probe == nil || probe.HTTPGet == nil {
			t.Errorf("the container has no %s probe over HTTP", name)
			continue
		}
		base := map[string]string{"calls": calls, "admin": admin}[probe.HTTPGet.Port.String()]
		answer, err := http.Get(base + probe.HTTPGet.Path)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		answer.Body.Close()
		if want := map[string]string{"readiness": "/readyz"}[name]; answer.StatusCode != http.StatusOK || want != "" && probe.HTTPGet.Path != want || want == "" && probe.HTTPGet.Path != "/healthz" {
			t.Errorf("the %s probe asks for %s and gets %s, want /readyz for readiness, /healthz otherwise, and 200", name, probe.HTTPGet.Path, answer.Status)
		}
	}
	if p := c.StartupProbe; p != nil && int(p.PeriodSeconds)*int(p.FailureThreshold) < 300 {
		t.Errorf("the startup probe allows %d x %d seconds, want at least 300", p.PeriodSeconds, p.FailureThreshold)
	}
}
