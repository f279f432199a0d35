package config

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/hookferry/analytics/signature"
	"github.com/hookferry/analytics/webhook"
)

// minimal is the smallest valid file.
const minimal = `
sources:
  - {name: web, keys: [k1], destinations: [crm]}
destinations:
  - {id: crm, endpoints: [{url: "http://a.example/"}]}
`

// write writes a text to hookferry.yaml in a new folder, and returns the path.
func write(t testing.TB, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "hookferry.yaml")
	overwrite(t, path, text)
	return path
}

func overwrite(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func env(vars map[string]string) func(string) string {
	return func(name string) string { return vars[name] }
}

// pair makes a certificate and its key in PEM.
func pair(t testing.TB) (cert, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"localhost"}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER})
}

func TestLoad(t *testing.T) {
	path := write(t, `
listen: localhost:1
tls: {certificate: cert.pem, key: ./key.pem}
baseURL: https://t.example.com/x
trustedProxies: [10.0.0.1, fd00::/8]
data: data
drain: 2s
grace: 3s
admin:
  listen: 0.0.0.0:8081
  token: ${TOKEN}
  tls: {certificate: cert.pem, key: key.pem}
webhooks: {name: N, disableAfter: 48h, whenDisabled: dead, operations: crm, allow: [10.0.0.0/8], proxy: "http://u:p@proxy:1", retries: {timeout: 20s, window: 96h, schedule: days, statuses: [409, 3xx], certificates: true}}
backlog: {maxAge: 12h, maxBytes: 5GB}
deadLetters: {maxAge: 24h, maxBytes: 2GB}
history: {maxAge: 48h, maxBytes: 3GB}
limits: {connections: 1_000, connectionsPerAddress: 10, idleTimeout: 1h, requestsPerAddress: 5, memory: 64MB, processMemory: 512MB, store: 1TB}
log: {format: json, level: warn, access: 0}
metrics: false
tracing: {endpoint: "http://otel:4318", headers: {A: "file:token"}, sample: 0.5, trustClients: true}
sources:
  - name: web
    keys: [&key "${KEY}-1", 42]
    rate: ${RATE}
    burst: 7
    byteRate: 3MB
    destinations: [b, a]
  - name: app
    keys: ["$${KEY}"]
    disabled: true
destinations:
  - id: b
    endpoints: &two
      - url: http://${HOST}/hook
        headers: &headers {Authorization: "Bearer ${TOKEN}"}
      - {url: "http://localhost:1/", headers: *headers}
    secret: file:token
    standardSecrets: [whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw]
    tls: {certificate: cert.pem, key: key.pem, ca: cert.pem}
    timeout: 1500ms
    window: 1h
    schedule: eager
    netHTTP: true
    filter: {include: [identify, "track:Order *"], exclude: ["*:Test"]}
    maxConcurrent: 3
    maxRate: 2.5
    maxBurst: 4
    order: user
  - id: many
    disabled: false
    endpoints: [{url: http://localhost:1/}]
    batch: {maxEvents: 100, maxBytes: 512KB, maxWait: 2s}
  - id: a
    disabled: true
    endpoints: *two
    secret: *key
`)
	dir := filepath.Dir(path)
	cert, key := pair(t)
	for name, content := range map[string][]byte{"cert.pem": cert, "key.pem": key, "token": []byte("t0ken\n")} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := Load(path, env(map[string]string{"TOKEN": "0123456789abcdef", "KEY": "k", "RATE": "1e3", "HOST": "a.example"}), nil)
	if err != nil {
		t.Fatal(err)
	}
	headers := map[string]string{"Authorization": "Bearer 0123456789abcdef"}
	two := []webhook.Endpoint{{URL: "http://a.example/hook", Headers: headers}, {URL: "http://localhost:1/", Headers: headers}}
	content := func(file []byte) Pem { return Pem{signature.Secret(strings.TrimSpace(string(file)))} }
	certificate := &Certificate{Cert: content(cert), Key: content(key)}
	want := &Settings{
		Path: path, Listen: "localhost:1", TLS: certificate, BaseURL: "https://t.example.com/x",
		TrustedProxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/32"), netip.MustParsePrefix("fd00::/8")},
		Data:           filepath.Join(dir, "data"), Queue: Default().Queue, Drain: 2 * time.Second, Grace: 3 * time.Second,
		Admin: Admin{Listen: "0.0.0.0:8081", Token: "0123456789abcdef", TLS: certificate},
		Webhooks: Webhooks{Name: "N", DisableAfter: 48 * time.Hour, WhenDisabled: Dead, Operations: "crm", Allow: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, Proxy: "http://u:p@proxy:1",
			Retries: &webhook.Retries{Timeout: 20 * time.Second, Window: 96 * time.Hour, Schedule: "days", Statuses: []string{"409", "3xx"}, Certificates: true}},
		Backlog:     Backlog{MaxAge: 12 * time.Hour, MaxBytes: 5 << 30},
		DeadLetters: DeadLetters{MaxAge: 24 * time.Hour, MaxBytes: 2 << 30},
		History:     History{MaxAge: 48 * time.Hour, MaxBytes: 3 << 30},
		Limits:      Limits{Connections: 1000, ConnectionsPerAddress: 10, IdleTimeout: time.Hour, RequestsPerAddress: 5, Memory: 64 << 20, ProcessMemory: 512 << 20, Store: 1 << 40},
		Log:         Log{Format: "json", Level: slog.LevelWarn},
		Tracing:     Tracing{Endpoint: "http://otel:4318", Headers: map[string]signature.Secret{"A": "t0ken"}, Sample: 0.5, TrustClients: true},
		Sources: []Source{
			{Name: "app", Disabled: true, Keys: []signature.Secret{"${KEY}"}},
			{Name: "web", Keys: []signature.Secret{"k-1", "42"}, Rate: 1000, Burst: 7, ByteRate: 3 << 20, Destinations: []string{"b", "a"}},
		},
		Destinations: []Destination{
			{ID: "a", Settings: webhook.Settings{Endpoints: two, Disabled: true}, Secret: "k-1"},
			{ID: "b", Secret: "t0ken", StandardSecrets: []signature.Secret{"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"},
				TLS: &ClientTLS{Cert: content(cert), Key: content(key), CA: content(cert)},
				Settings: webhook.Settings{
					Endpoints: two, Timeout: webhook.Duration(1500 * time.Millisecond), Window: webhook.Duration(time.Hour), Schedule: "eager", NetHTTP: true,
					Filter:        webhook.Filter{Include: []string{"identify", "track:Order *"}, Exclude: []string{"*:Test"}},
					MaxConcurrent: 3, MaxRate: 2.5, MaxBurst: 4, Order: "user",
				}},
			{ID: "many", Settings: webhook.Settings{Endpoints: []webhook.Endpoint{{URL: "http://localhost:1/"}}, Batch: webhook.Batch{MaxEvents: 100, MaxBytes: 512 << 10, MaxWait: 2 * time.Second}}},
		},
	}
	plain := cmp.Options{
		cmpopts.EquateComparable(netip.Prefix{}),
		cmpopts.IgnoreFields(Settings{}, "Loaded", "Files"), cmpopts.IgnoreFields(Certificate{}, "Pair"), cmpopts.IgnoreFields(Destination{}, "Webhook"),
	}
	if diff := cmp.Diff(want, got, plain); diff != "" {
		t.Errorf("Load (-want +got):\n%s", diff)
	}
	if got.TLS.Pair == nil || got.Admin.TLS.Pair == nil {
		t.Error("Load did not parse the certificates")
	}
	b := got.Destination("b")
	if b == nil || got.Destination("c") != nil {
		t.Fatalf("Destination(b) = %v, Destination(c) = %v, want only the first", b, got.Destination("c"))
	}
	if b.Webhook.TLS == nil || len(b.Webhook.TLS.Certificates) != 1 || b.Webhook.TLS.RootCAs == nil {
		t.Errorf("the webhook has the TLS %+v, want a certificate and authorities", b.Webhook.TLS)
	}
	w := *b.Webhook
	w.TLS = nil
	static := map[string]string{"Authorization": "Bearer 0123456789abcdef"}
	if diff := cmp.Diff(webhook.Destination{
		ID: "b", Trusted: true, Secret: "t0ken", StandardSecrets: b.StandardSecrets, MaxConcurrent: 3, MaxRate: 2.5, MaxBurst: 4, Order: webhook.OrderByUser,
		Timeout: 1500 * time.Millisecond, Window: time.Hour, Schedule: webhook.ScheduleEager, Retries: want.Webhooks.Retries, NetHTTP: true,
		Filter:    webhook.Filter{Include: []string{"identify", "track:Order *"}, Exclude: []string{"*:Test"}},
		Endpoints: []webhook.Endpoint{{URL: "http://a.example/hook", Headers: static}, {URL: "http://localhost:1/", Headers: static}},
	}, w); diff != "" {
		t.Errorf("webhook.Destination (-want +got):\n%s", diff)
	}
	many := webhook.Batch{MaxEvents: 100, MaxBytes: 512 << 10, MaxWait: 2 * time.Second}
	if batch := got.Destination("many").Webhook.Batch; batch != many {
		t.Errorf("the webhook has the batch %+v, want %+v", batch, many)
	}
	if !got.Destination("a").Webhook.Disabled {
		t.Error("disabled: true does not disable the destination")
	}
	for _, name := range []string{"hookferry.yaml", "cert.pem", "key.pem", "token"} {
		found := false
		for _, f := range got.Files {
			found = found || f.Path == filepath.Join(dir, name)
		}
		if !found {
			t.Errorf("Files %v lacks %s", got.Files, name)
		}
	}
}

func TestDefaults(t *testing.T) {
	got, err := Load(write(t, minimal), env(nil), nil)
	if err != nil {
		t.Fatal(err)
	}
	want := Default()
	want.Data = filepath.Join(filepath.Dir(got.Path), "hookferry-data")
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Prefix{}), cmpopts.IgnoreFields(Settings{}, "Path", "Loaded", "Files", "Sources", "Destinations")); diff != "" {
		t.Errorf("Load (-default +got):\n%s", diff)
	}
}

// TestExampleShowsTheDefaults reads the example, and then the example with everything that it
// comments out. Otherwise nobody would notice an old name of a key in a comment.
func TestExampleShowsTheDefaults(t *testing.T) {
	s, err := Load(write(t, Example()), env(nil), nil)
	if err != nil {
		t.Fatalf("Load refuses the example: %v", err)
	}
	want := Default()
	ignore := cmpopts.IgnoreFields(Settings{}, "Path", "Loaded", "Files", "Data", "Sources", "Destinations")
	if diff := cmp.Diff(want, s, cmpopts.EquateComparable(netip.Prefix{}), ignore); diff != "" {
		t.Errorf("the example differs from the defaults (-default +example):\n%s", diff)
	}
	if a, b := Example(), Example(); a == b {
		t.Error("two examples have the same key")
	}

	// The example has each key, at the right depth.
	full := strings.NewReplacer("# tls:", "tls:", "# queue:", "queue:", "# tenants:", "tenants:", "# baseURL", "baseURL", "# trusted", "trusted", "# token", "token", "# allow", "allow",
		"# operations", "operations", "# proxy", "proxy", "# retries", "retries", "# store", "store", "# memory", "memory", "# process", "process", "# byteRate", "byteRate", "# tracing", "tracing", "#   ", "  ", "# disabled", "disabled", "# filter", "filter", "# timeout", "timeout", "# window", "window", "# schedule", "schedule", "# netHTTP", "netHTTP", "# order", "order", "# batch", "batch", "# rate", "rate", "# burst", "burst",
		"# headers", "headers", "# standard", "standard", "# max", "max").Replace(Example())
	d := newReader("x", env(map[string]string{"HOOKFERRY_ADMIN_TOKEN": "0123456789abcdef", "CRM_TOKEN": "t", "DATABASE_PASSWORD": "p"}))
	d.decode([]byte(full), Default())
	for _, p := range d.problems {
		if !strings.HasPrefix(p.Text, "reading the file") { // these files do not exist
			t.Errorf("the example with its comments has the problem %v", p)
		}
	}
	for _, key := range keys() {
		plain := strings.NewReplacer("[]", "[0]", ".*", "").Replace(key)
		if _, ok := d.places[plain]; !ok {
			t.Errorf("the example lacks %s", key)
		}
	}
}

func TestLoadReportsEveryProblem(t *testing.T) {
	many := "sources:\n"
	for i := range 60 {
		many += fmt.Sprintf("  - {nam: s%d}\n", i)
	}
	for _, tt := range []struct {
		name string
		text string
		want []string // beginnings of the lines of the error, after the path
	}{
		{"empty", "", []string{" is empty"}},
		{"comments", "# nothing\n", []string{" is empty"}},
		{"not YAML", "a: [1\n", []string{"2:1: did not find expected ',' or ']'"}},
		{"tab", "a:\n\tb: 1\n", []string{"2:1: found character that cannot start any token"}},
		{"a text", "hello\n", []string{"1:1: want keys and values"}},
		{"a list", "- a\n", []string{"1:1: want keys and values"}},
		{"two documents", minimal + "---\na: 1\n", []string{" has more than one document"}},
		{"unknown keys, all of them", "lisen: x\nlog:\n  levle: info\n" + minimal, []string{
			"1:1: lisen: there is no such key; there are listen, tls, baseURL",
			"3:3: log.levle: there is no such key; there are format, level, access",
		}},
		{"given twice", "listen: :1\ngrace: 1s\nlisten: :2\n" + minimal, []string{"3:1: listen: is given twice; first in line 1"}},
		{"given twice in a mapping", "log: {level: info, level: warn}\n" + minimal, []string{"1:20: log.level: is given twice; first in line 1"}},
		{"without a value", "listen:\n" + minimal, []string{"1:8: listen: has no value; leave the key out for the default"}},
		{"merge", "log: {<<: {level: info}}\n" + minimal, []string{"1:7: log.<<: there is no such key"}},
		{"tag that does not fit", "listen: !!int secret\n" + minimal, []string{"1:9: listen: has a YAML tag; tags are not allowed"}},
		{"tag", "listen: !!str :1\n" + minimal, []string{"1:9: listen: has a YAML tag; tags are not allowed"}},
		{"anchor that is not there", "listen: *x\n" + minimal, []string{"1:9: refers to an anchor that is not above"}},
		{"of the wrong kind", "listen: [a]\nlog: 3\ntrustedProxies: x\nmetrics: yes\nlimits: {connections: ten}\ntracing: {sample: all}\ngrace: 10\n" + minimal, []string{
			"1:9: listen: want a single value",
			"2:6: log: want keys and values",
			"3:17: trustedProxies: want a list",
			"4:10: metrics: want true or false",
			"5:23: limits.connections: want a whole number",
			"6:19: tracing.sample: want a number",
			"7:8: grace: want a time such as 500ms, 10s or 720h",
		}},
		{"retries", "webhooks: {retries: {timeout: 31s, schedule: slow, statuses: [200]}}\n" + strings.Replace(minimal, "id: crm", "id: crm, retries: {window: 169h}", 1), []string{
			"1:31: webhooks.retries.timeout: is 31s; 0s to 30s is allowed",
			"1:46: webhooks.retries.schedule: is not known",
			"1:63: webhooks.retries.statuses[0]: is no status",
			"6:33: destinations[0].retries.window: is 169h0m0s; 0s to 168h0m0s is allowed",
		}},
		{"unknown word for waiting deliveries", "webhooks: {whenDisabled: drop, operations: ''}\n" + minimal, []string{"1:26: webhooks.whenDisabled: want keep or dead"}},
		{"values that do not parse", "log: {level: loud}\nlimits: {memory: 12 XB}\nwebhooks: {allow: [10.0.0.0/99]}\n" + minimal, []string{
			"1:14: log.level: want debug, info, warn or error",
			"2:18: limits.memory: want bytes such as 512KB, 64MB or 1GB",
			"3:20: webhooks.allow[0]: want an address, or a prefix such as 10.0.0.0/8",
		}},
		{"variables", "listen: ${NOT_SET}\ndata: ${\nbaseURL: ${not a name}\nadmin: {token: 'x${A}${1}'}\n" + minimal, []string{
			"1:9: listen: the environment variable NOT_SET is not set",
			"2:7: data: has ${ without a name and }",
			"3:10: baseURL: has ${ without a name and }",
			"4:16: admin.token: the environment variable A is not set",
		}},
		{"files", "admin: {token: file:not/there}\ntls: {certificate: '', key: .}\n" + minimal, []string{
			"1:16: admin.token: reading the file: ",
			"2:20: tls.certificate: want the path of a file",
			"2:29: tls.key: reading the file: ",
		}},
		{"out of bounds", "grace: 2h\nlimits: {connections: 0, memory: 1KB, processMemory: 1MB, requestsPerAddress: 0}\nlog: {format: xml, access: -1}\ntracing: {sample: 2}\ndeadLetters: {maxAge: 1s, maxBytes: 2TB}\nhistory: {maxAge: 1s, maxBytes: 1KB}\nbacklog: {maxAge: 1m, maxBytes: 1KB}\n" + minimal, []string{
			"1:8: grace: 0s to 1h0m0s are allowed",
			"2:23: limits.connections: 1 to 1000000 are allowed",
			"2:34: limits.memory: 1MB to 1TB are allowed",
			"2:54: limits.processMemory: 64MB to 1024TB are allowed",
			"2:79: limits.requestsPerAddress: 1 to 1000000 are allowed",
			"3:15: log.format: want text or json",
			"3:28: log.access: 0 to 1000000 are allowed",
			"4:19: tracing.sample: 0 to 1 are allowed",
			"5:23: deadLetters.maxAge: 1m0s to 87600h0m0s are allowed",
			"5:37: deadLetters.maxBytes: 1MB to 1TB are allowed",
			"6:19: history.maxAge: 1m0s to 87600h0m0s are allowed",
			"6:33: history.maxBytes: 1MB to 1TB are allowed",
			"7:19: backlog.maxAge: 1h0m0s to 87600h0m0s are allowed",
			"7:33: backlog.maxBytes: 1MB to 1TB are allowed",
		}},
		{"a history in JetStream", "queue: {url: 'nats://a.example'}\nhistory: {maxAge: 1h}\n" + minimal, []string{
			"2:19: history.maxAge: is for the store in the data folder and for PostgreSQL; with NATS servers nothing that was delivered is kept",
		}},
		{"addresses and URLs", "listen: '8080'\nbaseURL: ftp://x\nadmin: {listen: nowhere}\ntracing: {endpoint: otel:1}\nwebhooks: {name: 'a b', proxy: 'http://:x'}\n" + minimal, []string{
			"1:9: listen: want an address such as :8080 or localhost:8080",
			"2:10: baseURL: want an http or https URL",
			"3:17: admin.listen: want an address",
			"4:21: tracing.endpoint: want an http or https URL",
			"5:18: webhooks.name: want a product name",
			"5:32: webhooks.proxy: is no URL",
		}},
		{"URLs with what cannot be seen", "baseURL: \"https://a.example \"\ntracing: {endpoint: \"http://otel:1\\u200b\"}\nwebhooks: {proxy: \"http://p:1\\u00a0\"}\n" + minimal, []string{
			"1:10: baseURL: want an http or https URL",
			"2:21: tracing.endpoint: want an http or https URL",
			"3:19: webhooks.proxy: has a space or an invisible character, U+00A0, at byte 10",
		}},
		{"credentials where they would be ignored", "tracing: {endpoint: 'https://u:p@otel.example'}\n" + minimal, []string{
			"1:21: tracing.endpoint: want an http or https URL with a host and perhaps a path, and nothing else; credentials go into tracing.headers",
		}},
		{"wrong headers", `tracing:
  headers:
    a b: x
    '': x
    X-Ünder: x
    X-Good: "a\tb \u00fc"
    X-Broken: "SENTINEL\r\nX-Other: b"
    X-Bell: "SENTINEL\a"
    x-good: SENTINEL
` + minimal, []string{
			"3:10: tracing.headers.a b: is no name of a header",
			"4:9: tracing.headers.: is no name of a header",
			"5:14: tracing.headers.X-Ünder: is no name of a header",
			"7:15: tracing.headers.X-Broken: has a line break or another control character",
			"8:13: tracing.headers.X-Bell: has a line break or another control character",
			"9:13: tracing.headers.x-good: is given twice",
		}},
		{"ids that are folders", "sources: [{name: a, keys: [k]}]\ndestinations:\n  - {id: ., endpoints: [{url: 'http://a.example/'}]}\n  - {id: .., endpoints: [{url: 'http://a.example/'}]}\n", []string{
			"3:10: destinations[0].id: is no name in the path of a URL",
			"4:10: destinations[1].id: is no name in the path of a URL",
		}},
		{"a wrong product name", "webhooks: {name: 'a b'}\n" + minimal, []string{"1:18: webhooks.name: want a product name"}},
		{"token that is needed", "admin: {listen: ':8081'}\n" + minimal, []string{"1:8: admin.token: is required, as admin.listen is more than this machine's own address"}},
		{"token that is short", "admin: {token: short}\n" + minimal, []string{"1:16: admin.token: want 16 to 1024 visible characters"}},
		{"no sources", "destinations: []\n", []string{" sources: 1 to 10000 are allowed"}},
		{"source", `
sources:
  - name: ""
    keys: []
    rate: -1
  - name: a
    keys: [k, k, "a:b", ""]
    burst: 3
    destinations: [x, x]
  - {name: a, keys: [k]}
`, []string{
			"3:11: sources[0].name: want 1 to 255 bytes of UTF-8",
			"4:11: sources[0].keys: 1 to 10 are allowed",
			"5:11: sources[0].rate: one a day to 1,000,000 a second are allowed",
			"7:15: sources[1].keys[1]: is the same as sources[1].keys[0] in line 7",
			"7:18: sources[1].keys[2]: want 1 to 255 visible characters of ASCII without colons",
			"7:25: sources[1].keys[3]: want 1 to 255",
			"8:12: sources[1].burst: needs a rate",
			"9:20: sources[1].destinations[0]: there is no destination with this id",
			"9:23: sources[1].destinations[1]: there is no destination with this id",
			"10:12: sources[2].name: is the same as sources[1].name in line 6",
			"10:22: sources[2].keys[0]: is the same as sources[1].keys[0] in line 7",
		}},
		{"destination", `
sources: [{name: a, keys: [k], destinations: [d, d]}]
destinations:
  - id: d
    endpoints:
      - url: http://a.example/
      - url: ftp://a.example/
  - {id: d, endpoints: []}
  - {id: "", endpoints: [{url: "http://a.example/", headers: {Host: x}}]}
  - {id: r, maxRate: -1, endpoints: [{url: "http://a.example/"}]}
  - {id: s, standardSecrets: [x], endpoints: [{url: "http://a.example/"}]}
`, []string{
			"2:50: sources[0].destinations[1]: is the same as sources[0].destinations[0] in line 2",
			"7:14: destinations[0].endpoints[1].url: has the scheme",
			"8:10: destinations[1].id: is the same as destinations[0].id in line 4",
			"8:24: destinations[1].endpoints: 0 given; 1 to 5 are allowed",
			"9:10: destinations[2].id: want 1 to 255 bytes",
			"9:69: destinations[2].endpoints[0].headers.Host: may not be replaced",
			"10:22: destinations[3].maxRate: ",
			"11:31: destinations[4].standardSecrets[0]: is not",
		}},
		{"bad certificates", `
tls: {certificate: hookferry.yaml, key: hookferry.yaml}
sources: [{name: a, keys: [k]}]
destinations:
  - {id: d, endpoints: [{url: "http://a.example/"}], tls: {ca: hookferry.yaml}}
  - {id: e, endpoints: [{url: "http://a.example/"}], tls: {certificate: hookferry.yaml}}
`, []string{
			"2:6: tls: want a certificate and its key, both in PEM",
			"5:64: destinations[0].tls.ca: holds no certificate in PEM",
			"6:59: destinations[1].tls.key: is required",
		}},
		{"empty files", `
tls: {certificate: empty, key: empty}
sources: [{name: a, keys: ["file:empty"]}]
destinations: [{id: d, endpoints: [{url: "http://a.example/"}], tls: {ca: empty}}]
`, []string{
			"2:20: tls.certificate: the file is empty",
			"2:32: tls.key: the file is empty",
			"3:28: sources[0].keys[0]: the file is empty",
			"4:75: destinations[0].tls.ca: the file is empty",
		}},
		{"very many", many, []string{"2:6: sources[0].nam: there is no such key"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := write(t, tt.text)
			overwrite(t, filepath.Join(filepath.Dir(path), "empty"), "")
			s, err := Load(path, env(nil), nil)
			var wrong *Error
			if !errors.As(err, &wrong) {
				t.Fatalf("Load: %v, want an *Error", err)
			}
			if s == nil || s.Path != path || len(s.Files) == 0 {
				t.Errorf("Load returned %+v, want settings with the path and the files to watch", s)
			}
			lines := strings.Split(err.Error(), "\n")
			if tt.name == "very many" {
				if len(lines) != maxProblems {
					t.Errorf("Load reports %d problems, want %d", len(lines), maxProblems)
				}
				lines = lines[:1]
			}
			for i := range max(len(lines), len(tt.want)) {
				switch {
				case i >= len(lines):
					t.Errorf("the error lacks a line that begins with %q", tt.want[i])
				case i >= len(tt.want):
					t.Errorf("the error has the line %q, want no such line", lines[i])
				default:
					if want := path + ":" + tt.want[i]; !strings.HasPrefix(lines[i], want) {
						t.Errorf("got  %q\nwant %q", lines[i], want)
					}
				}
			}
		})
	}
}

// TestErrorsRepeatNoSecret puts a text at the place of every key. The error of Load must not have
// that text.
func TestErrorsRepeatNoSecret(t *testing.T) {
	const secret = "SENTINEL"
	path := write(t, "")
	for _, key := range keys() {
		for _, text := range []string{secret, "${S}", "file:" + secret, "http://" + secret + ":" + secret + "@[x/?" + secret, secret + "\x01", "[" + secret + "]", "{a: " + secret + "}", "'" + secret, "!!" + "int " + secret} {
			doc := ""
			if key == "sources" || key == "destinations" {
				continue
			}
			parts := strings.Split(strings.ReplaceAll(key, "[]", ".[]"), ".")
			for i, part := range parts {
				indent := strings.Repeat("  ", i)
				switch {
				case part == "[]":
					doc += indent + "-\n"
				case part == "*":
					doc += indent + "h:\n"
				default:
					doc += indent + part + ":\n"
				}
			}
			doc += strings.Repeat("  ", len(parts)) + text + "\n"
			overwrite(t, path, doc)
			_, err := Load(path, env(map[string]string{"S": secret}), nil)
			if err == nil {
				t.Errorf("%s: Load of %q returned no error", key, doc)
				continue
			}
			if strings.Contains(err.Error(), secret) {
				t.Errorf("%s: the error for %q repeats the text: %v", key, text, err)
			}
		}
	}
}

func TestKeepReusesUnchangedDestinations(t *testing.T) {
	file := func(url string) string {
		return strings.Replace(minimal, "http://a.example/", url, 1) + "  - {id: other, endpoints: [{url: \"http://b.example/\"}]}\n"
	}
	path := write(t, file("http://a.example/"))
	first, err := Load(path, env(nil), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(file("http://c.example/")), 0o600); err != nil {
		t.Fatal(err)
	}
	second, err := Load(path, env(nil), nil)
	if err != nil {
		t.Fatal(err)
	}
	second.Keep(first)
	if second.Destination("crm").Webhook == first.Destination("crm").Webhook {
		t.Error("Keep kept a destination that has changed")
	}
	if second.Destination("other").Webhook != first.Destination("other").Webhook {
		t.Error("Keep replaced a destination that has not changed")
	}
}

func TestAwaitRestartNamesChangedKeys(t *testing.T) {
	was, is := Default(), Default()
	if got := is.AwaitRestart(was); len(got) != 0 {
		t.Errorf("AwaitRestart without changes = %q, want none", got)
	}
	is.Grace, is.Log.Level, is.Log.Access = time.Second, slog.LevelDebug, 5
	is.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	is.Sources = []Source{{Name: "x"}}
	if got := is.AwaitRestart(was); len(got) != 0 {
		t.Errorf("AwaitRestart with changes that a running server applies = %q, want none", got)
	}
	is.Data, is.Admin.Token, is.Limits.Connections, is.TLS = "x", "y", 3, &Certificate{}
	if diff := cmp.Diff([]string{"tls", "data", "admin.token", "limits"}, is.AwaitRestart(was)); diff != "" {
		t.Errorf("AwaitRestart (-want +got):\n%s", diff)
	}
}

// TestEveryKeyIsKnownToReload shows that each key of the file either needs a restart, or is in the
// list of keys that a running server applies.
func TestEveryKeyIsKnownToReload(t *testing.T) {
	atOnce := []string{"trustedProxies", "drain", "grace", "log.level", "log.access", "tenants", "sources", "destinations"}
	changed := Default()
	other := &Settings{TLS: &Certificate{}, Admin: Admin{TLS: &Certificate{}, Token: "x"}, BaseURL: "x", Tracing: Tracing{Endpoint: "x"}}
	known := append(other.AwaitRestart(changed), atOnce...)
	for _, key := range keys() {
		covered := false
		for _, k := range known {
			covered = covered || key == k || strings.HasPrefix(key, k+".") || strings.HasPrefix(key, k+"[") || strings.HasPrefix(k, key+".")
		}
		if !covered {
			t.Errorf("%s is neither in AwaitRestart nor in the list of keys that a running server applies", key)
		}
	}
}

func TestParseSize(t *testing.T) {
	for text, want := range map[string]Size{"0": 0, "1": 1, "512KB": 512 << 10, "1 MB": 1 << 20, "3GB": 3 << 30, "1TB": 1 << 40} {
		got, err := parseSize(text)
		if err != nil || got != want {
			t.Errorf("parseSize(%q) = %d, %v; want %d", text, got, err, want)
		}
		if again, err := parseSize(got.String()); err != nil || again != want {
			t.Errorf("Size(%d).String() = %q, which parses to %d, %v", want, got, again, err)
		}
	}
	for _, text := range []string{"", "MB", "-1", "1.5GB", "9999999999TB", "1PB", "0x10"} {
		if got, err := parseSize(text); err == nil {
			t.Errorf("parseSize(%q) = %d, want an error", text, got)
		}
	}
}

func TestPrintingSourcesHidesKeys(t *testing.T) {
	s, err := Load(write(t, strings.Replace(minimal, "k1", "SENTINEL", 1)), env(nil), nil)
	if err != nil {
		t.Fatal(err)
	}
	if text := fmt.Sprintf("%v %+v %#v", s.Sources, s.Sources, s.Sources); strings.Contains(text, "SENTINEL") {
		t.Errorf("the printed sources have a write key: %s", text)
	}
}

// TestCertificateIsLoadedWithoutItsListener shows that Load reads the certificate of a listener
// that the settings switch off. A running listener goes on with the certificate until a restart.
func TestCertificateIsLoadedWithoutItsListener(t *testing.T) {
	path := write(t, "admin: {listen: off, tls: {certificate: cert.pem, key: key.pem}}\n"+minimal)
	cert, key := pair(t)
	for name, text := range map[string][]byte{"cert.pem": cert, "key.pem": key} {
		if err := os.WriteFile(filepath.Join(filepath.Dir(path), name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s, err := Load(path, env(nil), nil)
	if err != nil {
		t.Fatal(err)
	}
	if s.Admin.TLS.Pair == nil {
		t.Error("Load did not parse the certificate")
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(minimal))
	f.Add([]byte(Example()))
	f.Add([]byte("a: &a [*a]\nsources: &b [{name: *b}]"))
	f.Add([]byte("log: {level: ${A}, format: $${}}\n---\n"))
	f.Add([]byte("- ? a\n- {b, c:}\n-\n- - [d: ]"))
	f.Fuzz(func(t *testing.T, text []byte) {
		s := Default()
		d := newReader("x", env(map[string]string{"A": "a"}))
		d.decode(text, s)
		if len(d.problems) == 0 {
			err := s.Complete()
			if err != nil && reflect.TypeOf(err) != reflect.TypeFor[*Error]() {
				t.Errorf("Complete returned the error %v of type %T, want *Error", err, err)
			}
		}
	})
}

func TestParse(t *testing.T) {
	t.Setenv("HOOKFERRY_SENTINEL", "SENTINEL")
	endpoints := []any{map[string]any{"url": "https://a.example/"}}
	for _, tt := range []struct {
		name     string
		document map[string]any
		want     []string // keys of the problems
	}{
		{"nothing", map[string]any{}, nil},
		{"all kinds of values", map[string]any{
			"disabled": true, "endpoints": endpoints, "secret": "s", "standardSecrets": []any{"a"}, "timeout": "2s", "window": "1h", "maxRate": 0.5, "maxConcurrent": 3.0,
			"netHTTP": true, "filter": map[string]any{"include": []any{"track:\U0001f600 <&> \u2028*"}}, "sources": []any{"web"}, "tls": map[string]any{"ca": "x"},
			"retries": map[string]any{"standard": true}, "batch": map[string]any{"maxEvents": 5, "maxBytes": "1KB", "maxWait": "1s"},
		}, nil},
		{"keys that only answers have", map[string]any{"id": "x", "tenant": "acme", "version": "1"}, []string{"id", "tenant", "version"}},
		{"an unknown key", map[string]any{"endpoints": endpoints, "secrets": "SENTINEL"}, []string{"secrets"}},
		{"an unknown key with null", map[string]any{"secrets": nil}, []string{"secrets"}},
		{"null below a key", map[string]any{"filter": map[string]any{"include": nil}}, []string{"filter.include"}},
		{"several", map[string]any{"timeout": "SENTINEL", "maxRate": "SENTINEL"}, []string{"maxRate", "timeout"}},
		{"sources that are no list", map[string]any{"sources": "SENTINEL"}, []string{"sources"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := Parse(tt.document, new(Document))
			var got []string
			var wrong *Error
			if errors.As(err, &wrong) {
				for _, p := range wrong.Problems {
					got = append(got, p.Key)
				}
			}
			if slices.Sort(got); !slices.Equal(got, tt.want) || err != nil && strings.Contains(err.Error(), "SENTINEL") {
				t.Errorf("Parse: %v, want problems of %v", err, tt.want)
			}
		})
	}

	// Parse takes references to files and variables of the server literally.
	secret := write(t, "SENTINEL")
	for _, text := range []string{"file:" + secret, "${HOOKFERRY_SENTINEL}", "${"} {
		var d Document
		err := Parse(map[string]any{"secret": text, "tls": map[string]any{"ca": text}, "endpoints": []any{map[string]any{"url": text}}}, &d)
		if err != nil || d.Secret.Reveal() != text || d.TLS.CA != text || d.Endpoints[0].URL != text {
			t.Errorf("Parse of %q: error %v, or another text, want the text itself", text, err)
		}
	}

	// A key replaces all that was below it, and null stands for zero.
	d := Document{Sources: []string{"web"}}
	d.Filter, d.Timeout, d.Endpoints = webhook.Filter{Include: []string{"page"}}, webhook.Duration(time.Second), []webhook.Endpoint{{URL: "https://a.example/", Headers: map[string]string{"A": "b"}}}
	d.Retries = webhook.StandardRetries()
	err := Parse(map[string]any{"filter": map[string]any{"exclude": []any{"track"}}, "timeout": nil, "endpoints": []any{map[string]any{"url": "https://b.example/"}}, "retries": map[string]any{"window": "1h"}}, &d)
	want := Document{Sources: []string{"web"}}
	want.Filter.Exclude, want.Endpoints, want.Retries = []string{"track"}, []webhook.Endpoint{{URL: "https://b.example/"}}, &webhook.Retries{Window: time.Hour}
	if diff := cmp.Diff(want, d); err != nil || diff != "" {
		t.Errorf("Parse: error %v, document (-want +got):\n%s", err, diff)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"endpoints": [{"url": "https://a.example/", "headers": {"A": "b"}}], "secret": "s", "timeout": "2s"}`))
	f.Add([]byte(`{"name": "\ud83d\ude00\u0000\u007f\u0085\ufffe", "tls": {"ca": "x"}, "maxRate": 1e300}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		var document map[string]any
		if json.Unmarshal(text, &document) != nil {
			return
		}
		err := Parse(document, new(Document))
		if err != nil && reflect.TypeOf(err) != reflect.TypeFor[*Error]() {
			t.Errorf("Parse returned the error %v of type %T, want an *Error", err, err)
		}
	})
}

func TestReadSecret(t *testing.T) {
	path := write(t, "SENTINEL\nSENTINEL2\r\n")
	if got, err := ReadSecret("plain"); err != nil || got != "plain" {
		t.Errorf("ReadSecret(plain) = %q, %v, want plain", got.Reveal(), err)
	}
	if got, err := ReadSecret("file:" + path); err != nil || got != "SENTINEL\nSENTINEL2" {
		t.Errorf("ReadSecret(file) = %q, %v, want the text without its last line break", got.Reveal(), err)
	}
	empty, large := write(t, "\n"), write(t, strings.Repeat("SENTINEL", maxSecretFile/8)+"x")
	for path, want := range map[string]string{empty: "the file is empty", large: "more than 262144 bytes"} {
		_, err := ReadSecret("file:" + path)
		if err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "SENTINEL") {
			t.Errorf("ReadSecret(file:%s): %v, want the path and %q", path, err, want)
		}
	}
}

func TestShownHidesSecretsOfTheURL(t *testing.T) {
	for _, tt := range []struct{ name, url, want string }{
		{"credentials", "https://user:passw0rd@crm.example:8443/hook?token=t0ken#part", "https://crm.example:8443/hook"},
		{"an encoded path", "https://crm.example/a%2Fb%20c", "https://crm.example/a%2Fb%20c"},
		{"no URL", "https://user:passw0rd@crm.example:port/", "?"},
	} {
		if got := Shown(tt.url); got != tt.want {
			t.Errorf("%s: Shown() = %q, want %q", tt.name, got, tt.want)
		}
	}
}
