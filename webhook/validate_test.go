package webhook_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/hookferry/analytics/signature"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/memqueue"
)

// Validate returns one error for each invalid setting. New returns only the first.
func TestValidateReturnsEveryFault(t *testing.T) {
	d := &webhook.Destination{
		MaxConcurrent:   -1,
		MaxBurst:        1,
		StandardSecrets: []signature.Secret{"x", "y"},
		Endpoints: []webhook.Endpoint{
			{URL: "ftp://crm.example/", Headers: map[string]string{"Host": "a", "b c": "d"}},
			{URL: "http://crm.example/"},
			{URL: "http://crm.example/"},
		},
	}
	err := d.Validate()
	several, ok := err.(interface{ Unwrap() []error })
	if !ok {
		t.Fatalf("Validate() = %v, want several errors", err)
	}
	var got []string
	for _, err := range several.Unwrap() {
		got = append(got, err.(*webhook.ConfigError).Field)
	}
	want := []string{"ID", "MaxConcurrent", "MaxBurst", "StandardSecrets[0]", "StandardSecrets[1]",
		"Endpoints[0].URL", `Endpoints[0].Headers["Host"]`, `Endpoints[0].Headers["b c"]`, "Endpoints[2].URL"}
	if !slices.Equal(got, want) {
		t.Errorf("Validate() names the fields\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	_, err = webhook.New(webhook.Config{Store: memqueue.New(memqueue.Config{}), Destinations: []webhook.Destination{*d}})
	if one, ok := err.(*webhook.ConfigError); !ok || one.Field != "Destinations[0].ID" {
		t.Errorf("New() = %v, want the first error, of Destinations[0].ID", err)
	}
}
