package tenants

import (
	"encoding/json"
	"time"

	"github.com/hookferry/analytics/check"
	"github.com/hookferry/analytics/webhook"
)

// plain is a Destination without methods.
type plain Destination

// jsonForm is the JSON of a Destination: its own fields hide those with the same keys.
type jsonForm struct {
	plain
	Timeout string    `json:"timeout,omitempty"`
	Window  string    `json:"window,omitempty"`
	Batch   batchForm `json:"batch,omitzero"`
}

// batchForm is the JSON of a webhook.Batch, in the same way.
type batchForm struct {
	webhook.Batch
	MaxWait string `json:"maxWait,omitempty"`
}

// MarshalJSON writes durations as texts, such as "30s".
func (d Destination) MarshalJSON() ([]byte, error) {
	return json.Marshal(jsonForm{plain(d), spell(d.Timeout), spell(d.Window), batchForm{d.Batch, spell(d.Batch.MaxWait)}})
}

// UnmarshalJSON reads what MarshalJSON writes. An error for a duration is a *webhook.ConfigError.
func (d *Destination) UnmarshalJSON(text []byte) error {
	form := jsonForm{plain: plain(*d), Batch: batchForm{Batch: d.Batch}}
	if err := json.Unmarshal(text, &form); err != nil {
		return err
	}
	*d = Destination(form.plain)
	d.Batch = form.Batch.Batch
	var wrong check.Faults
	read(&wrong, "Timeout", form.Timeout, &d.Timeout)
	read(&wrong, "Window", form.Window, &d.Window)
	read(&wrong, "Batch.MaxWait", form.Batch.MaxWait, &d.Batch.MaxWait)
	return refused(wrong)
}

// spell returns a duration as a text, "" for zero.
func spell(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return d.String()
}

// read sets a duration to the value of a text, unless the text is empty.
func read(wrong *check.Faults, field, text string, to *time.Duration) {
	if text == "" {
		return
	}
	d, err := time.ParseDuration(text)
	if wrong.Refuse(err != nil, field, `is no duration such as "30s"`); err == nil {
		*to = d
	}
}
