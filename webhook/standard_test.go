package webhook_test

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hookferry/analytics/audience"
	"github.com/hookferry/analytics/signature"
	"github.com/hookferry/analytics/step"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/webhooktest"
)

const (
	newSecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	oldSecret = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYX"
)

// standardHeaders returns the headers of Standard Webhooks in h, with their names as they were
// sent.
func standardHeaders(h http.Header) map[string][]string {
	got := make(map[string][]string)
	for name, values := range h {
		if strings.HasPrefix(strings.ToLower(name), "webhook-") {
			got[name] = values
		}
	}
	return got
}

// All attempts of a delivery have the same webhook-id. webhook-timestamp is the time of the
// attempt. Each secret and each public key alone verifies the request.
func TestStandardWebhooksSignsEachAttempt(t *testing.T) {
	private, verify := []signature.Secret{newSecret, oldSecret}, []signature.Secret{newSecret, oldSecret}
	for range 2 {
		key := signature.NewStandardPrivateKey()
		public, err := signature.StandardPublicKey(key)
		must(t, err)
		private, verify = append(private, key), append(verify, signature.Secret(public))
	}
	for _, url := range []string{"http://crm.example/hook", "https://crm.example/hook"} {
		for _, h2 := range []bool{false, true} {
			inBubble(t, func(t *testing.T, r *rig) {
				crm := r.network.Receiver(url, "shared", step.Answer(503), step.Hang(), step.Answer(200))
				if strings.HasPrefix(url, "https:") {
					crm.SetTLS(webhooktest.TLS{HTTP2: h2})
				}
				r.start(webhook.Config{Destinations: []webhook.Destination{{
					ID:              "crm",
					Endpoints:       []webhook.Endpoint{{URL: url, Headers: map[string]string{"X-Static": "1"}}},
					Secret:          "shared",
					StandardSecrets: private,
				}}})
				r.track("m-1")
				requests, err := crm.Wait(t.Context(), 3)
				must(t, err)
				var stamps []string
				for _, q := range requests {
					for _, secret := range verify {
						// The tolerance is a minute, because this also verifies the attempt that timed out.
						if err := signature.VerifyStandard(q.Body, q.Header, time.Minute, secret); err != nil {
							t.Errorf("%s: request %d: VerifyStandard() = %v, want nil", url, q.Number, err)
						}
					}
					if q.Signature != nil || q.Header.Get("X-Static") != "1" {
						t.Errorf("%s: request %d: X-Signature is %v, X-Static is %q; want a valid signature and 1", url, q.Number, q.Signature, q.Header.Get("X-Static"))
					}
					if id := q.Header.Get("webhook-id"); id != "m-1" {
						t.Errorf("%s: request %d: webhook-id = %q, want m-1", url, q.Number, id)
					}
					for _, version := range []string{"v1,", "v1a,"} {
						if n := strings.Count(q.Header.Get("webhook-signature"), version); n != 2 {
							t.Errorf("%s: request %d has %d signatures %s, want 2", url, q.Number, n, version)
						}
					}
					stamp := q.Header.Get("webhook-timestamp")
					if stamp != fmt.Sprint(q.Time.Unix()) {
						t.Errorf("%s: request %d at %d: webhook-timestamp = %s, want the time of the request", url, q.Number, q.Time.Unix(), stamp)
					}
					stamps = append(stamps, stamp)
				}
				if slices.Sort(stamps); len(slices.Compact(stamps)) < 2 {
					t.Errorf("%s: all attempts have the webhook-timestamp %s, want different ones", url, stamps)
				}
			})
		}
	}
}

func TestStandardWebhooksIsOptional(t *testing.T) {
	for _, tt := range []struct {
		name       string
		secret     signature.Secret
		secrets    []signature.Secret
		xSignature bool
		want       []string
	}{
		{"neither", "", nil, false, nil},
		{"X-Signature", newSecret, nil, true, nil},
		{"Standard Webhooks", "", []signature.Secret{newSecret}, false, []string{"Webhook-Id", "Webhook-Signature", "Webhook-Timestamp"}},
		{"both with one secret", newSecret, []signature.Secret{newSecret}, true, []string{"Webhook-Id", "Webhook-Signature", "Webhook-Timestamp"}},
	} {
		inBubble(t, func(t *testing.T, r *rig) {
			crm := r.network.Receiver("http://crm.example/hook", newSecret)
			r.start(webhook.Config{Destinations: []webhook.Destination{{
				ID:              "crm",
				Endpoints:       []webhook.Endpoint{{URL: "http://crm.example/hook"}},
				Secret:          tt.secret,
				StandardSecrets: tt.secrets,
			}}})
			r.track("m1")
			must(t, audience.New(r.Forwarder, nil).Delete(t.Context(), audience.Deletion{Destinations: []string{"crm"}}, audience.Users(slices.Values([]string{"u1"}))))
			requests, err := crm.Wait(t.Context(), 2)
			must(t, err)
			for _, q := range requests {
				if _, ok := q.Header[signature.Header]; ok != tt.xSignature || ok && q.Signature != nil {
					t.Errorf("%s: X-Signature = %q, verified with %v; want a valid one: %v", tt.name, q.Header[signature.Header], q.Signature, tt.xSignature)
				}
				got := slices.Sorted(maps.Keys(standardHeaders(q.Header)))
				if diff := cmp.Diff(tt.want, got); diff != "" {
					t.Errorf("%s: headers of Standard Webhooks (-want +got):\n%s", tt.name, diff)
				}
				if tt.want == nil {
					continue
				}
				if err := signature.VerifyStandard(q.Body, q.Header, 0, newSecret); err != nil {
					t.Errorf("%s: %s: VerifyStandard() = %v, want nil", tt.name, q.JSON["type"], err)
				}
			}
		})
	}
}

// A messageId may have any text, because it comes from users. webhook-id escapes it, so that it
// cannot add a header or change what is signed.
func TestWebhookIDIsTheEscapedMessageID(t *testing.T) {
	for _, h2 := range []bool{false, true} {
		inBubble(t, func(t *testing.T, r *rig) {
			crm := r.network.Receiver("https://crm.example/hook", "")
			crm.SetTLS(webhooktest.TLS{HTTP2: h2})
			r.start(webhook.Config{Destinations: []webhook.Destination{{
				ID:              "crm",
				Endpoints:       []webhook.Endpoint{{URL: "https://crm.example/hook"}},
				StandardSecrets: []signature.Secret{newSecret},
			}}})
			want := map[string]string{ // by messageId
				"f81d4fae-7dec-11d0-a765-00a0c91e6bf6": "f81d4fae-7dec-11d0-a765-00a0c91e6bf6",
				"a_B~!$&'()*+,;=:@/?#[]\"<>\\^`{|}":    "a_B~!$&'()*+,;=:@/?#[]\"<>\\^`{|}",
				"1.2026":                               "1%2E2026",
				"100%":                                 "100%25",
				"a\r\nX-Signature: forged\r\n":         "a%0D%0AX-Signature:%20forged%0D%0A",
				"nul\x00tab\tdel\x7f":                  "nul%00tab%09del%7F",
				" ä\u2028":                             "%20%C3%A4%E2%80%A8",
			}
			for id := range want {
				r.track(id)
			}
			requests, err := crm.Wait(t.Context(), len(want))
			must(t, err)
			got := make(map[string]string)
			for _, q := range requests {
				got[q.JSON["messageId"].(string)] = q.Header.Get("webhook-id")
				if err := signature.VerifyStandard(q.Body, q.Header, 0, newSecret); err != nil {
					t.Errorf("messageId %q: VerifyStandard() = %v, want nil", q.JSON["messageId"], err)
				}
				if v, ok := q.Header["X-Signature"]; ok {
					t.Errorf("messageId %q: X-Signature is %q, want none", q.JSON["messageId"], v)
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("webhook-id by messageId (-want +got):\n%s", diff)
			}
		})
	}
}

func TestValidateRefusesInvalidStandardSecrets(t *testing.T) {
	good := webhook.Destination{ID: "crm", Endpoints: []webhook.Endpoint{{URL: "http://crm.example/"}}}
	for _, tt := range []struct {
		name    string
		secrets []signature.Secret
		field   string
	}{
		{"five secrets", slices.Repeat([]signature.Secret{newSecret}, 5), ""},
		{"six secrets", slices.Repeat([]signature.Secret{newSecret}, 6), "StandardSecrets"},
		{"empty secret", []signature.Secret{newSecret, ""}, "StandardSecrets[1]"},
		{"without the prefix", []signature.Secret{"hunter2"}, "StandardSecrets[0]"},
		{"too short", []signature.Secret{"whsec_hunter2="}, "StandardSecrets[0]"},
	} {
		d := good
		d.StandardSecrets = tt.secrets
		err := d.Validate()
		var ce *webhook.ConfigError
		if errors.As(err, &ce) != (tt.field != "") || ce != nil && ce.Field != tt.field {
			t.Errorf("%s: Validate() = %v, want it to refuse %q", tt.name, err, tt.field)
		}
		if err != nil && strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: the error has the secret: %v", tt.name, err)
		}
	}
	for _, name := range []string{"webhook-id", "Webhook-Timestamp", "WEBHOOK-SIGNATURE"} {
		d := good
		d.Endpoints = []webhook.Endpoint{{URL: "http://crm.example/", Headers: map[string]string{name: "x"}}}
		if d.Validate() == nil {
			t.Errorf("Validate() of a static header %s = nil, want an error", name)
		}
	}
}
