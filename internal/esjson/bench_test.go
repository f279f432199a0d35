package esjson

import (
	"encoding/json"
	"math"
	"testing"
	"time"
)

// typicalBody is a typical webhook body, of 450 bytes.
const typicalBody = `{"version":1,"type":"track","userId":"user-019c2f64-7f5e","event":"Order Completed",` +
	`"properties":{"orderId":"50314b8e9bcf","revenue":39.95,"shipping":3,"tax":2.05,"currency":"USD","coupon":"WELCOME10","repeat":true},` +
	`"timestamp":"2024-05-06T07:08:09.010Z","messageId":"6f1c2a9e-3b57-4c0d-8e21-7a5b9d4f1c33",` +
	`"context":{"ip":"203.0.113.7","library":{"name":"analytics-go","version":"1.0.0"}},` +
	`"receivedAt":"2024-05-06T07:08:09.510Z","sentAt":"2024-05-06T07:08:09.350Z"}`

// nastyBody needs every kind of change that Append makes.
const nastyBody = `{ "type" : "track", "properties" : { "name" : "J\u00f6rg \u003cb\u003e", "2" : 1.0, "1" : 2.50, "price" : 19.990, "id" : 12345678901234567890,` +
	` "list" : [ 1e3, 1E-7, -0, 0.1000 ], "path" : "a\/b\/c", "emoji" : "\ud83d\ude00", "name" : "again", "bad" : "` + "\xe2\x82 \xff" + `" },` +
	` "context" : { "b" : { "9" : 1, "8" : { "z" : 1, "7" : [ ] } }, "a" : null, "0" : { } }, "type" : "track" }`

func BenchmarkAppend(b *testing.B) {
	for _, bench := range []struct{ name, text string }{
		{"body=typical", typicalBody},
		{"body=nasty", nastyBody},
		{"body=10000keys", string(manyKeys(10_000))},
		{"body=1000deep", string(nested(`{"b":0,"1":`, "1", `,"b":2}`, MaxDepth))},
	} {
		b.Run(bench.name, func(b *testing.B) {
			src := []byte(bench.text)
			dst, err := Append(nil, src)
			if err != nil {
				b.Fatal(err)
			}
			b.SetBytes(int64(len(src)))
			b.ReportAllocs()
			for b.Loop() {
				dst, _ = Append(dst[:0], src)
			}
		})
	}
}

func BenchmarkMembers(b *testing.B) {
	src := []byte(typicalBody)
	b.SetBytes(int64(len(src)))
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		if err := Members(src, func(key, value []byte) error { n++; return nil }); err != nil {
			b.Fatal(err)
		}
	}
}

// tenProperties returns the properties of a typical track call.
func tenProperties() map[string]any {
	return map[string]any{
		"orderId":  "50314b8e9bcf000000000000",
		"revenue":  39.95,
		"quantity": 3,
		"currency": "USD",
		"coupon":   "WELCOME10",
		"repeat":   true,
		"category": "Grüße & Co.",
		"position": int64(7),
		"discount": 0.5,
		"referrer": nil,
	}
}

// BenchmarkAppendValue also reports the ratio of its time to that of json.Marshal for the same
// value. It runs the two alternately.
func BenchmarkAppendValue(b *testing.B) {
	for _, bench := range []struct {
		name  string
		value any
	}{
		{"value=ten", tenProperties()},
		{"value=nested", map[string]any{
			"products": []map[string]any{tenProperties(), tenProperties()},
			"tags":     []string{"a", "b", "c"},
			"counts":   map[string]int{"1": 1, "10": 2, "9": 3},
		}},
		{"value=strings", map[string]string{"email": "someone@example.com", "name": "Some One", "plan": "enterprise"}},
		{"value=struct", struct {
			Name  string  `json:"name"`
			Price float64 `json:"price"`
		}{"thing", 19.99}},
	} {
		b.Run(bench.name, func(b *testing.B) {
			dst, err := AppendValue(nil, bench.value)
			if err != nil {
				b.Fatal(err)
			}
			b.SetBytes(int64(len(dst)))
			b.ReportAllocs()
			for b.Loop() {
				dst, _ = AppendValue(dst[:0], bench.value)
			}
			b.StopTimer()
			// The fastest of many short runs is the one that other programs disturb least.
			rounds, calls := min(200, b.N), min(50, b.N)
			own, std := time.Duration(math.MaxInt64), time.Duration(math.MaxInt64)
			for range rounds {
				start := time.Now()
				for range calls {
					dst, _ = AppendValue(dst[:0], bench.value)
				}
				own = min(own, time.Since(start))
				start = time.Now()
				for range calls {
					_, _ = json.Marshal(bench.value)
				}
				std = min(std, time.Since(start))
			}
			b.ReportMetric(float64(own)/float64(std), "x_json.Marshal")
		})
	}
}

func BenchmarkAppendString(b *testing.B) {
	for _, bench := range []struct{ name, text string }{
		{"text=short", "WELCOME10"},
		{"text=long", "A sentence of about the length that the titles of pages have, in ASCII"},
		{"text=accents", "Zażółć gęślą jaźń, Grüße aus Köln, déjà vu"},
	} {
		b.Run(bench.name, func(b *testing.B) {
			b.SetBytes(int64(len(bench.text)))
			b.ReportAllocs()
			var dst []byte
			for b.Loop() {
				dst = AppendString(dst[:0], bench.text)
			}
		})
	}
}

func BenchmarkAppendFloat(b *testing.B) {
	b.ReportAllocs()
	var dst []byte
	for b.Loop() {
		dst = AppendFloat(dst[:0], 39.95)
	}
}
