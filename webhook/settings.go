package webhook

import (
	"encoding/json"
	"errors"
	"time"
)

// Settings are those of a Destination that a document can have: a file in YAML or JSON, a document of
// package tenants, or a request to the admin API. Tags have the keys. The fields mean what the fields
// of a Destination with the same names mean. No secret is among them, except in URLs and headers.
type Settings struct {
	Endpoints     []Endpoint `json:"endpoints,omitempty"`
	Disabled      bool       `json:"disabled,omitempty"`
	Filter        Filter     `json:"filter,omitzero"`
	Timeout       Duration   `json:"timeout,omitzero"`
	Window        Duration   `json:"window,omitzero"`
	Schedule      Schedule   `json:"schedule,omitempty"`
	Retries       *Retries   `json:"retries,omitempty"`
	MaxConcurrent int        `json:"maxConcurrent,omitempty"`
	MaxRate       float64    `json:"maxRate,omitempty"`
	MaxBurst      int        `json:"maxBurst,omitempty"`
	Order         Order      `json:"order,omitempty"`
	Batch         Batch      `json:"batch,omitzero"`
	NetHTTP       bool       `json:"netHTTP,omitempty"`
}

// Destination returns a Destination with these settings, which shares their memory.
func (s *Settings) Destination() Destination {
	return Destination{
		Endpoints: s.Endpoints, Disabled: s.Disabled, Filter: s.Filter, Timeout: time.Duration(s.Timeout), Window: time.Duration(s.Window),
		Schedule: s.Schedule, Retries: s.Retries, MaxConcurrent: s.MaxConcurrent, MaxRate: s.MaxRate, MaxBurst: s.MaxBurst,
		Order: s.Order, Batch: s.Batch, NetHTTP: s.NetHTTP,
	}
}

// A Duration is a time.Duration that is a text in documents, such as "30s"; see time.ParseDuration.
type Duration time.Duration

func (d Duration) String() string { return time.Duration(d).String() }

// MarshalText implements encoding.TextMarshaler.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Duration) UnmarshalText(text []byte) error {
	read, err := time.ParseDuration(string(text))
	if err != nil {
		return errors.New(`webhook: want a time such as "30s"`)
	}
	*d = Duration(read)
	return nil
}

// plainBatch and plainRetries have no methods.
type (
	plainBatch   Batch
	plainRetries Retries
)

// batchForm is the JSON of a Batch: its own field hides the one with the same key.
type batchForm struct {
	*plainBatch
	MaxWait *Duration `json:"maxWait,omitzero"`
}

// retriesForm is the JSON of a Retries, in the same way.
type retriesForm struct {
	Standard bool      `json:"standard,omitempty"`
	Timeout  *Duration `json:"timeout,omitzero"`
	Window   *Duration `json:"window,omitzero"`
	*plainRetries
}

// MarshalJSON implements json.Marshaler.
func (b Batch) MarshalJSON() ([]byte, error) {
	return json.Marshal(batchForm{(*plainBatch)(&b), spelled(&b.MaxWait)})
}

// UnmarshalJSON implements json.Unmarshaler.
func (b *Batch) UnmarshalJSON(text []byte) error {
	return json.Unmarshal(text, &batchForm{(*plainBatch)(b), (*Duration)(&b.MaxWait)})
}

// MarshalJSON implements json.Marshaler.
func (r Retries) MarshalJSON() ([]byte, error) {
	return json.Marshal(retriesForm{Timeout: spelled(&r.Timeout), Window: spelled(&r.Window), plainRetries: (*plainRetries)(&r)})
}

// UnmarshalJSON implements json.Unmarshaler.
func (r *Retries) UnmarshalJSON(text []byte) error {
	var asks struct {
		Standard bool `json:"standard"`
	}
	if err := json.Unmarshal(text, &asks); err != nil {
		return err
	}
	if *r = (Retries{}); asks.Standard {
		*r = *StandardRetries()
	}
	return json.Unmarshal(text, &retriesForm{Timeout: (*Duration)(&r.Timeout), Window: (*Duration)(&r.Window), plainRetries: (*plainRetries)(r)})
}

// spelled returns d, nil for zero, which JSON leaves out.
func spelled(d *time.Duration) *Duration {
	if *d == 0 {
		return nil
	}
	return (*Duration)(d)
}
