package webhook_test

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"github.com/hookferry/analytics/webhook"
)

// Each field of Settings has a key, is in JSON, and becomes the field of a Destination with its name.
func TestSettingsBecomeADestination(t *testing.T) {
	const text = `{"endpoints":[{"url":"https://a.example/","headers":{"A":"b"}}],"disabled":true,"filter":{"include":["page"]},` +
		`"timeout":"1.5s","window":"1h0m0s","schedule":"eager","retries":{"timeout":"20s","window":"48h0m0s","statuses":["409"]},` +
		`"maxConcurrent":3,"maxRate":0.5,"maxBurst":2,"order":"user","batch":{"maxEvents":10,"maxBytes":1024,"maxWait":"2s"},"netHTTP":true}`
	var s webhook.Settings
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		t.Fatal(err)
	}
	if got, err := json.Marshal(s); err != nil || string(got) != text {
		t.Errorf("Marshal() = %s, %v, want %s", got, err, text)
	}
	d, settings := s.Destination(), reflect.ValueOf(s)
	for f, value := range settings.Fields() {
		got := reflect.ValueOf(d).FieldByName(f.Name)
		if value.IsZero() || !reflect.DeepEqual(got.Interface(), value.Convert(got.Type()).Interface()) {
			t.Errorf("%s of the destination is %v, of the settings %v, want the same and not zero", f.Name, got, value)
		}
	}
	if d.Timeout != 1500*time.Millisecond || d.Batch.MaxWait != 2*time.Second || d.Retries.Window != 48*time.Hour {
		t.Errorf("the times of the destination are %v, %v and %v", d.Timeout, d.Batch.MaxWait, d.Retries.Window)
	}
}
