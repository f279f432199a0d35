package webhook_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/hookferry/analytics/signature"
	"github.com/hookferry/analytics/webhook"
)

// Validate and New return one error for each invalid setting, in the order of the fields.
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
	want := []string{"ID", "Endpoints[0].URL", `Endpoints[0].Headers["Host"]`, `Endpoints[0].Headers["b c"]`, "Endpoints[2].URL",
		"StandardSecrets[0]", "StandardSecrets[1]", "MaxConcurrent", "MaxBurst"}
	if got := fieldsOf(d.Validate()); !slices.Equal(got, want) {
		t.Errorf("Validate() names the fields\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	for i := range want {
		want[i] = "Destinations[0]." + want[i]
	}
	want = slices.Concat([]string{"Store"}, want, []string{"Poll"})
	_, err := webhook.New(webhook.Config{Destinations: []webhook.Destination{*d}, Poll: -1})
	if got := fieldsOf(err); !slices.Equal(got, want) {
		t.Errorf("New() names the fields\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// fieldsOf returns the fields of the *ConfigErrors that err joins.
func fieldsOf(err error) (fields []string) {
	several, _ := err.(interface{ Unwrap() []error })
	for _, err := range several.Unwrap() {
		fields = append(fields, err.(*webhook.ConfigError).Field)
	}
	return fields
}
