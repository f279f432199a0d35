package docs_test

// The tests of a receiver in receivers.md. They are the same for every language.

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hookferry/analytics"
	"github.com/hookferry/analytics/internal/testkit"
	"github.com/hookferry/analytics/signature"
	"github.com/hookferry/analytics/signature/receivertest"
	"github.com/hookferry/analytics/step"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/memqueue"
	"github.com/hookferry/analytics/webhook/webhooktest"
)

const xSecret = "s3cret ✓"

var standardSecret = signature.NewStandardSecret()

// endings is a webhook.Observer that sends the end of each delivery to a channel.
type endings chan webhook.Record

func (endings) Accepted(webhook.Accepted)   {}
func (endings) Attempted(webhook.Attempted) {}
func (e endings) Ended(end webhook.Record)  { e <- end }

// testHandler tests a receiver that is written in Go, in virtual time.
func testHandler(t *testing.T, h http.Handler) {
	synctest.Test(t, func(t *testing.T) {
		network := webhooktest.NewNetwork()
		defer network.Close()
		receiver := network.Receiver("http://receiver.example", "", step.Serve(h))
		testReceiver(t, receiver.URL, network.DialContext)
	})
}

// testReceiver checks that a receiver accepts only requests that are signed with its secrets. First
// a forwarder delivers to it. Then testReceiver sends requests that a forwarder never sends.
func testReceiver(t *testing.T, base string, dial func(ctx context.Context, network, address string) (net.Conn, error)) {
	t.Helper()
	endpoint := func(path string) []webhook.Endpoint { return []webhook.Endpoint{{URL: base + path}} }
	ended := make(endings)
	forwarder, err := webhook.New(webhook.Config{
		Store: testkit.Must(memqueue.Open(memqueue.Config{})),
		Destinations: []webhook.Destination{
			{ID: "good", Endpoints: endpoint("/hook"), Secret: xSecret},
			{ID: "good standard", Endpoints: endpoint("/standard"), StandardSecrets: []signature.Secret{standardSecret}},
			{ID: "good standard, replaced", Endpoints: endpoint("/standard"), StandardSecrets: []signature.Secret{signature.NewStandardSecret(), standardSecret}},
			{ID: "good, in batches", Endpoints: endpoint("/standard"), StandardSecrets: []signature.Secret{standardSecret}, Batch: webhook.Batch{MaxEvents: 10}},
			{ID: "unsigned", Endpoints: endpoint("/hook")},
			{ID: "wrong secret", Endpoints: endpoint("/hook"), Secret: "other"},
			{ID: "standard, wrong secret", Endpoints: endpoint("/standard"), StandardSecrets: []signature.Secret{signature.NewStandardSecret()}},
			{ID: "standard, signed by the other scheme", Endpoints: endpoint("/standard"), Secret: xSecret},
		},
		Retries:     &webhook.Retries{Timeout: 30 * time.Second}, // interpreters may be slow
		Observers:   []webhook.Observer{ended},
		DialContext: dial,
	})
	if err != nil {
		t.Fatal(err)
	}
	ran := make(chan error, 1)
	go func() { ran <- forwarder.Run(context.Background()) }()
	defer func() {
		if err := forwarder.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
		if err := <-ran; err != nil {
			t.Error(err)
		}
	}()
	calls := []analytics.Message{
		&analytics.Track{UserId: "u1", Event: "Größe 漢字 😀 \u2028 </script>", MessageId: "m1",
			Properties: map[string]any{"ключ": "значение\x00\x7f\"\\", "price": 1e21, "ratio": 0.1}},
		&analytics.Identify{UserId: "ü", MessageId: "mé.1"},
	}
	for _, id := range []string{"good", "good standard", "good standard, replaced", "good, in batches", "unsigned", "wrong secret", "standard, wrong secret", "standard, signed by the other scheme"} {
		for _, call := range calls {
			if err := forwarder.Forward(context.Background(), id, call); err != nil {
				t.Fatal(err)
			}
			end := <-ended
			if strings.HasPrefix(id, "good") {
				if end.Reason != "" {
					t.Errorf("%s: given up because of %s after %+v, want it delivered", id, end.Reason, end.Delivery.Attempts)
				}
			} else if n := len(end.Delivery.Attempts); end.Reason != webhook.ReasonRefused || n == 0 || end.Delivery.Attempts[n-1].Status != http.StatusUnauthorized {
				t.Errorf("%s: ended as %q after %+v, want a 401", id, end.Reason, end.Delivery.Attempts)
			}
		}
	}

	const body = `{"version":1,"type":"track","userId":"u1","event":"Größe 漢字 😀"}`
	good, err := signature.Sign([]byte(body), xSecret)
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: dial}}
	post := func(name, path, body string, header map[string]string, want int) {
		t.Helper()
		r, err := http.NewRequest(http.MethodPost, base+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		for name, value := range header {
			r.Header.Set(name, value)
		}
		a, err := client.Do(r)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			return
		}
		a.Body.Close()
		if a.StatusCode != want {
			t.Errorf("%s: answered %d, want %d", name, a.StatusCode, want)
		}
	}
	for _, tt := range []struct {
		name, body, signature string
		status                int
	}{
		{"good", body, good, 204},
		{"of a changed body", strings.Replace(body, "ö", "o", 1), good, 401},
		{"of a body without its last byte", body[:len(body)-1], good, 401},
		{"that is empty", body, "", 401},
		{"without its last digit", body, good[:39], 401},
		{"with a digit too many", body, good + "0", 401},
		{"that is not hexadecimal", body, strings.Repeat("z", 40), 401},
		{"that is not ASCII", body, "ÿ" + good[1:], 401},
	} {
		post("X-Signature "+tt.name, "/hook", tt.body, map[string]string{signature.Header: tt.signature}, tt.status)
	}

	now := time.Now()
	other := signature.NewStandardSecret()
	for _, tt := range []struct {
		name   string
		at     time.Time
		by     []signature.Secret
		header map[string]string // replaces signed headers
		body   string            // replaces the signed body, if not empty
		status int
	}{
		{"good", now, []signature.Secret{standardSecret}, nil, "", 204},
		{"four minutes old", now.Add(-4 * time.Minute), []signature.Secret{standardSecret}, nil, "", 204},
		{"ten minutes old", now.Add(-10 * time.Minute), []signature.Secret{standardSecret}, nil, "", 401},
		{"ten minutes in the future", now.Add(10 * time.Minute), []signature.Secret{standardSecret}, nil, "", 401},
		{"by two secrets", now, []signature.Secret{other, standardSecret}, nil, "", 204},
		{"by a wrong secret", now, []signature.Secret{other}, nil, "", 401},
		{"of a wrong body", now, []signature.Secret{standardSecret}, nil, "{}", 401},
		{"of a wrong id", now, []signature.Secret{standardSecret}, map[string]string{"webhook-id": "m2"}, "", 401},
		{"of a wrong time", now, []signature.Secret{standardSecret}, map[string]string{"webhook-timestamp": strconv.FormatInt(now.Unix()-1, 10)}, "", 401},
		{"with a time that is not a number", now, []signature.Secret{standardSecret}, map[string]string{"webhook-timestamp": "now"}, "", 401},
		{"with a time of 40 digits", now, []signature.Secret{standardSecret}, map[string]string{"webhook-timestamp": strings.Repeat("9", 40)}, "", 401},
		{"without a time", now, []signature.Secret{standardSecret}, map[string]string{"webhook-timestamp": ""}, "", 401},
		{"without an id", now, []signature.Secret{standardSecret}, map[string]string{"webhook-id": ""}, "", 401},
		{"without a signature", now, []signature.Secret{standardSecret}, map[string]string{"webhook-signature": ""}, "", 401},
		{"of an unknown version", now, []signature.Secret{standardSecret}, map[string]string{"webhook-signature": "v2,AAAA"}, "", 401},
	} {
		signed, err := signature.SignStandard([]byte(body), "m1", tt.at, tt.by...)
		if err != nil {
			t.Fatal(err)
		}
		header := map[string]string{
			signature.StandardID: "m1", signature.StandardTimestamp: strconv.FormatInt(tt.at.Unix(), 10), signature.StandardSignature: signed,
		}
		for name, value := range tt.header {
			header[name] = value
		}
		sent := body
		if tt.body != "" {
			sent = tt.body
		}
		post("Standard Webhooks "+tt.name, "/standard", sent, header, tt.status)
	}
	// What a full stop in the id moves from the id to the time is signed all the same.
	key := testkit.Must(base64.StdEncoding.DecodeString(strings.TrimPrefix(standardSecret.Reveal(), "whsec_")))
	at := strconv.FormatInt(now.Unix(), 10)
	for _, id := range []string{"", "m.1"} {
		mac := hmac.New(sha256.New, key)
		fmt.Fprintf(mac, "%s.%s.%s", id, at, body)
		post("Standard Webhooks with the id "+id, "/standard", body, map[string]string{
			signature.StandardID: id, signature.StandardTimestamp: at, signature.StandardSignature: "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil)),
		}, 401)
	}
	probeReceiver(t, base, client.Transport)
}

// probeReceiver runs the checks of hookferry probe --changes.
func probeReceiver(t *testing.T, base string, transport http.RoundTripper) {
	for _, c := range []receivertest.Config{
		{URL: base + "/hook", Secrets: []signature.Secret{xSecret}},
		{URL: base + "/standard", Secrets: []signature.Secret{standardSecret}, Scheme: signature.StandardWebhooks},
	} {
		c.Transport, c.Batches = transport, true
		for _, check := range receivertest.Checks() {
			if err := check.Run(t.Context(), c); err != nil && !errors.Is(err, receivertest.ErrSkipped) {
				t.Errorf("%s: %s: %v", c.URL, check.Name, err)
			}
		}
	}
}
