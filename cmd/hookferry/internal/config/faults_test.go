package config

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

// TestLoadReportsEachFaultOnce reads files with faults of every kind. Load reports each fault once,
// and no fault that only follows from another one.
func TestLoadReportsEachFaultOnce(t *testing.T) {
	for _, tt := range []struct {
		name string
		text string
		want []string // the keys of the problems
	}{
		{"every kind", `
lisen: :8080
grace: soon
admin: {token: short}
webhooks: {name: two words, proxy: "ftp://proxy.example"}
limits: {connections: 0}
log: {format: xml}
sources:
  - {name: web, keys: ["${MISSING}"], destinations: [crm, nowhere]}
  - {name: web, keys: [k], burst: 3, destinations: [crm]}
destinations:
  - id: crm
    maxConcurrent: -1
    standardSecrets: [whsec_x]
    endpoints:
      - {url: "ftp://a.example/", headers: {Host: a, "b c": d}}
      - {url: "http://1.2.3/"}
`, []string{
			"lisen", "grace", "admin.token", "webhooks.name", "webhooks.proxy", "limits.connections", "log.format",
			"sources[0].keys[0]", "sources[0].destinations[1]", "sources[1].name", "sources[1].burst",
			"destinations[0].maxConcurrent", "destinations[0].standardSecrets[0]",
			"destinations[0].endpoints[0].url", "destinations[0].endpoints[0].headers.Host", "destinations[0].endpoints[0].headers.b c",
			"destinations[0].endpoints[1].url",
		}},
		{"an id that cannot be read", `
sources: [{name: web, keys: [k], destinations: [crm, crm]}]
destinations: [{id: "${MISSING}", endpoints: [{url: "http://a.example/"}]}]
`, []string{"sources[0].destinations[1]", "destinations[0].id"}},
		{"destinations that cannot be read", `
sources: [{name: web, keys: [k], destinations: [crm]}]
destinations: crm
`, []string{"destinations"}},
		{"a rate that cannot be read", `
sources: [{name: web, keys: [k], rate: fast, burst: 3}]
`, []string{"sources[0].rate"}},
		{"a URL that cannot be read", `
sources: [{name: web, keys: [k]}]
destinations: [{id: crm, endpoints: [{url: "${MISSING}", headers: {Host: a}}]}]
`, []string{"destinations[0].endpoints[0].url", "destinations[0].endpoints[0].headers.Host"}},
		{"certificates that cannot be read", `
tls: {certificate: missing, key: missing}
sources: [{name: web, keys: [k]}]
destinations: [{id: crm, endpoints: [{url: "https://a.example/"}], tls: {certificate: missing, key: hookferry.yaml, ca: hookferry.yaml}}]
`, []string{"tls.certificate", "tls.key", "destinations[0].tls.certificate", "destinations[0].tls.ca"}},
		{"a certificate that cannot be read, without its key", `
tls: {certificate: missing}
admin: {tls: {key: hookferry.yaml}}
sources: [{name: web, keys: [k]}]
destinations: [{id: crm, endpoints: [{url: "https://a.example/"}], tls: {certificate: missing}}]
`, []string{"tls.key", "tls.certificate", "admin.tls.certificate", "destinations[0].tls.key", "destinations[0].tls.certificate"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Load(write(t, tt.text), env(nil), nil)
			var wrong *Error
			if !errors.As(err, &wrong) {
				t.Fatalf("Load() = %v, want an *Error", err)
			}
			var got []string
			for _, p := range wrong.Problems {
				got = append(got, p.Key)
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("Load reports problems with\n\t%s\nwant\n\t%s\nthe error is\n%v", strings.Join(got, "\n\t"), strings.Join(tt.want, "\n\t"), err)
			}
		})
	}
}
