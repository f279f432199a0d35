package esjson

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha1"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"
)

var (
	update = flag.Bool("update", false, "rewrite testdata/golden.txt with what Node says")
	seedOf = flag.Uint64("seed", 0, "seed of the generated inputs; 0 takes the time")
)

// golden holds what Node said of inputs: a line for each, the quoted text, a
// tab, and the quoted answer with its HMAC or the word error.
const golden = "testdata/golden.txt"

const oracleKey = "an oracle's secret"

// An answer is what an ECMAScript receiver makes of a text.
type answer struct {
	ok        bool
	text, mac string
}

func (a answer) String() string {
	if !a.ok {
		return "error"
	}
	return strconv.QuoteToASCII(a.text) + " " + a.mac
}

// node asks Node about texts, all in one process.
func node(t *testing.T, texts [][]byte) []answer {
	t.Helper()
	var in bytes.Buffer
	for _, text := range texts {
		in.WriteString(base64.StdEncoding.EncodeToString(text))
		in.WriteByte('\n')
	}
	cmd := exec.Command("node", "testdata/oracle.mjs", oracleKey)
	cmd.Stdin = &in
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("node: %v", err)
	}
	lines := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
	if len(lines) != len(texts) {
		t.Fatalf("node answered %d of %d texts", len(lines), len(texts))
	}
	answers := make([]answer, len(lines))
	for i, line := range lines {
		if line == "error" {
			continue
		}
		encoded, mac, _ := strings.Cut(line, " ")
		text, err := base64.StdEncoding.DecodeString(encoded)
		if err != nil {
			t.Fatalf("node: %v", err)
		}
		answers[i] = answer{true, string(text), mac}
	}
	return answers
}

// ours is what this package makes of a text.
func ours(text []byte) answer {
	out, err := Append(nil, text)
	if err != nil {
		return answer{}
	}
	mac := hmac.New(sha1.New, []byte(oracleKey))
	mac.Write(out)
	return answer{true, string(out), hex.EncodeToString(mac.Sum(nil))}
}

// withNode reports whether there is a Node to ask. Without one the test falls
// back on what it said before, except where CI is to have one.
func withNode(t *testing.T) bool {
	t.Helper()
	if _, err := exec.LookPath("node"); err != nil {
		if os.Getenv("CI") == "true" || *update {
			t.Fatalf("the oracle needs Node: %v", err)
		}
		t.Logf("no Node: %v; the live oracle is left out", err)
		return false
	}
	return true
}

func TestAppendAgreesWithNode(t *testing.T) {
	var texts [][]byte
	var topics []string
	for _, group := range inputs {
		for _, text := range group.texts {
			texts = append(texts, []byte(text))
			topics = append(topics, group.topic)
		}
	}
	var want []answer
	if withNode(t) {
		want = node(t, texts)
	} else {
		want = readGolden(t, texts)
	}
	if *update {
		writeGolden(t, texts, want)
	}
	for i, text := range texts {
		if got := ours(text); got != want[i] {
			t.Errorf("%s: Append(%+q) gives\n\t%v\nwant\n\t%v", topics[i], text, got, want[i])
		}
	}
	t.Logf("%d texts", len(texts))
}

// TestGoldenIsFresh keeps the answers on file those that Node gives.
func TestGoldenIsFresh(t *testing.T) {
	var texts [][]byte
	for _, group := range inputs {
		for _, text := range group.texts {
			texts = append(texts, []byte(text))
		}
	}
	want := readGolden(t, texts)
	if !withNode(t) {
		return
	}
	for i, now := range node(t, texts) {
		if now != want[i] {
			t.Errorf("%s has for %+q\n\t%v\nNode says\n\t%v", golden, texts[i], want[i], now)
		}
	}
}

func writeGolden(t *testing.T, texts [][]byte, answers []answer) {
	t.Helper()
	var b bytes.Buffer
	for i, text := range texts {
		fmt.Fprintf(&b, "%+q\t%v\n", text, answers[i])
	}
	if err := os.WriteFile(golden, b.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}

func readGolden(t *testing.T, texts [][]byte) []answer {
	t.Helper()
	b, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	b = bytes.ReplaceAll(b, []byte("\r\n"), []byte("\n")) // as a checkout may have it
	lines := strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")
	if len(lines) != len(texts) {
		t.Fatalf("%s has %d lines for %d texts; run the test with -update", golden, len(lines), len(texts))
	}
	answers := make([]answer, len(lines))
	for i, line := range lines {
		quoted, said, ok := strings.Cut(line, "\t")
		if !ok || quoted != fmt.Sprintf("%+q", texts[i]) {
			t.Fatalf("%s:%d is not about %+q; run the test with -update", golden, i+1, texts[i])
		}
		if said == "error" {
			continue
		}
		space := strings.LastIndexByte(said, ' ')
		text, err := strconv.Unquote(said[:max(space, 0)])
		if err != nil {
			t.Fatalf("%s:%d: %v", golden, i+1, err)
		}
		answers[i] = answer{true, text, said[space+1:]}
	}
	return answers
}

// newGenerator prints its seed, with which -seed makes the same inputs again.
func newGenerator(t testing.TB) *generator {
	seed := *seedOf
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("-seed %d", seed)
	return &generator{Rand: rand.New(rand.NewPCG(seed, 0))}
}

func TestAppendAgreesWithNodeOnGenerated(t *testing.T) {
	g := newGenerator(t)
	var texts [][]byte
	for range 4000 {
		text := g.text(nil, 4)
		texts = append(texts, text)
		if g.IntN(3) == 0 {
			texts = append(texts, g.mutated(text))
		}
	}
	for range 3000 {
		texts = append(texts, g.number(nil))
	}
	texts = append(texts, nested("[", "", "]", MaxDepth), nested(`{"a":`, "1", "}", MaxDepth),
		nested(`{"b":0,"1":`, "1", `,"b":2}`, MaxDepth), manyKeys(10_000))
	ask := known
	if withNode(t) {
		ask = node
	}
	accepted := 0
	for i, want := range ask(t, texts) {
		got := ours(texts[i])
		if got != want {
			t.Errorf("Append(%+q) gives\n\t%v\nwant\n\t%v", texts[i], got, want)
		}
		if want.ok {
			accepted++
		}
	}
	if refused := len(texts) - accepted; accepted < 4000 || refused < 200 {
		t.Errorf("generated %d valid and %d invalid texts, too few of one kind to prove anything", accepted, refused)
	}
}

// known is what can be said of texts without Node: which of them are JSON, and
// that their form is a fixed point.
func known(t *testing.T, texts [][]byte) []answer {
	t.Helper()
	answers := make([]answer, len(texts))
	for i, text := range texts {
		if json.Valid(text) {
			answers[i] = ours([]byte(ours(text).text))
		}
	}
	return answers
}

func TestNodeLeavesValuesUnchanged(t *testing.T) {
	g := newGenerator(t)
	var texts [][]byte
	for range 3000 {
		v := g.value(4)
		text, err := AppendValue(nil, v)
		if err != nil {
			t.Fatalf("AppendValue(%#v): %v", v, err)
		}
		texts = append(texts, text)
	}
	for range 2000 {
		texts = append(texts, AppendFloat(nil, g.float()))
		text, err := AppendValue(nil, g.float32())
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, text)
	}
	ask := known
	if withNode(t) {
		ask = node
	}
	for i, want := range ask(t, texts) {
		if !want.ok || want.text != string(texts[i]) {
			t.Errorf("Node makes of %+q\n\t%v", texts[i], want)
		}
	}
}

func TestAppendRefusesDepth(t *testing.T) {
	for _, text := range [][]byte{
		nested("[", "", "]", MaxDepth+1),
		nested(`{"a":`, "1", "}", MaxDepth+1),
		nested("[", "", "", 1_000_000),
		nested(`[{"a":`, "1", "}]", MaxDepth/2+1),
		append(append([]byte(`{"a":`), nested("[", "", "]", MaxDepth)...), `,"a":1}`...),
	} {
		out, err := Append([]byte("kept"), text)
		if !errors.Is(err, ErrDepth) || string(out) != "kept" {
			t.Errorf("Append(%.20q...) = %.20q, %v; want ErrDepth", text, out, err)
		}
	}
}

// nested puts n of the brackets open and close around inner.
func nested(open, inner, close string, n int) []byte {
	return []byte(strings.Repeat(open, n) + inner + strings.Repeat(close, n))
}

// manyKeys is an object of n members in an order that is wrong everywhere, each
// key there twice.
func manyKeys(n int) []byte {
	b := []byte{'{'}
	for i := range 2 * n {
		k := (i * 7919) % n
		if k%2 == 0 {
			b = fmt.Appendf(b, `"%d":%d,`, k, i)
		} else {
			b = fmt.Appendf(b, `"k%d":{"b":%d,"a":1,"b":2},`, k, i)
		}
	}
	b[len(b)-1] = '}'
	return b
}
