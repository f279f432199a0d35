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

	"github.com/hookferry/analytics/internal/soakenv"
	"github.com/hookferry/analytics/internal/testkit"
)

var update = flag.Bool("update", false, "rewrite testdata/golden.txt with the results of Node")

// golden holds the results of Node for inputs. Each line has the quoted text, a tab, and
// then the quoted result with its HMAC, or the word error.
const golden = "testdata/golden.txt"

const oracleKey = "an oracle's secret"

// An answer is the JSON that an ECMAScript receiver writes after reading a text, and its
// HMAC.
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

func nodeProgram(t *testing.T) string {
	t.Helper()
	return testkit.Program(t, "node", "apt-get install nodejs, or https://nodejs.org")
}

// node returns the results of Node for texts. It starts one process for all of them.
func node(t *testing.T, texts [][]byte) []answer {
	t.Helper()
	var in bytes.Buffer
	for _, text := range texts {
		in.WriteString(base64.StdEncoding.EncodeToString(text))
		in.WriteByte('\n')
	}
	cmd := exec.Command(nodeProgram(t), "testdata/oracle.mjs", oracleKey)
	cmd.Stdin = &in
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("node: %v", err)
	}
	lines := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
	if len(lines) != len(texts) {
		t.Fatalf("node answered %d texts, want %d", len(lines), len(texts))
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

// ours returns the answer of Append for a text.
func ours(text []byte) answer {
	out, err := Append(nil, text)
	if err != nil {
		return answer{}
	}
	mac := hmac.New(sha1.New, []byte(oracleKey))
	mac.Write(out)
	return answer{true, string(out), hex.EncodeToString(mac.Sum(nil))}
}

// inputTexts returns the texts of inputs.
func inputTexts() (texts [][]byte) {
	for _, group := range inputs {
		for _, text := range group.texts {
			texts = append(texts, []byte(text))
		}
	}
	return texts
}

// TestAppendAgreesWithGolden compares Append with the results of Node in the golden file.
func TestAppendAgreesWithGolden(t *testing.T) {
	texts := inputTexts()
	if *update {
		writeGolden(t, texts, node(t, texts))
	}
	for i, want := range readGolden(t, texts) {
		if got := ours(texts[i]); got != want {
			t.Errorf("Append(%+q) gives\n\t%v\nwant\n\t%v", texts[i], got, want)
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
	b = bytes.ReplaceAll(b, []byte("\r\n"), []byte("\n")) // Git may check the file out with CRLF
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

func newGenerator(seed uint64) *generator {
	return &generator{Rand: rand.New(rand.NewPCG(seed, 0))}
}

// texts returns random JSON texts, and invalid texts that look like JSON.
func (g *generator) texts() (texts [][]byte) {
	for range 600 {
		text := g.text(nil, 4)
		texts = append(texts, text)
		if g.IntN(3) == 0 {
			texts = append(texts, g.mutated(text))
		}
	}
	for range 400 {
		texts = append(texts, g.number(nil))
	}
	return texts
}

// TestAppendAgreesWithNode compares Append with Node on the texts of the golden file and on
// generated texts. It also runs Node on the output of AppendValue, which Node must not change.
func TestAppendAgreesWithNode(t *testing.T) {
	nodeProgram(t)
	for seed := range soakenv.Seeds(t, 1) {
		g := newGenerator(seed)
		texts := append(inputTexts(), g.texts()...)
		texts = append(texts, nested("[", "", "]", MaxDepth), nested(`{"a":`, "1", "}", MaxDepth),
			nested(`{"b":0,"1":`, "1", `,"b":2}`, MaxDepth), manyKeys(1000))
		valuesFrom := len(texts)
		for range 500 {
			for _, v := range []any{g.value(4), g.float(), g.float32()} {
				text, err := AppendValue(nil, v)
				if err != nil {
					t.Fatalf("seed %d: AppendValue(%#v): %v", seed, v, err)
				}
				texts = append(texts, text)
			}
		}
		for i, want := range node(t, texts) {
			if got := ours(texts[i]); got != want {
				t.Errorf("seed %d: Append(%+q) gives\n\t%v\nwant\n\t%v", seed, texts[i], got, want)
			}
			if i >= valuesFrom && want.text != string(texts[i]) {
				t.Errorf("seed %d: AppendValue wrote %+q, but Node changes that to\n\t%v", seed, texts[i], want)
			}
		}
		if t.Failed() {
			return
		}
	}
}

// TestGenerated checks rules that hold for every text, value and number, on generated ones.
func TestGenerated(t *testing.T) {
	for seed := range soakenv.Seeds(t, 3) {
		for _, check := range []func(*testing.T, *generator){
			checkTexts, checkValues, checkCanonicalNumbers, checkIntegers, checkFewDecimals, checkKeyOrder,
		} {
			check(t, newGenerator(seed))
		}
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// checkTexts checks that Append accepts JSON and nothing else, and that it leaves its own output
// unchanged.
func checkTexts(t *testing.T, g *generator) {
	accepted, texts := 0, g.texts()
	for _, text := range texts {
		got := ours(text)
		if got.ok != json.Valid(text) || got.ok && ours([]byte(got.text)) != got {
			t.Errorf("Append(%+q) gives %v, want success: %t, and output that Append does not change", text, got, json.Valid(text))
		}
		if got.ok {
			accepted++
		}
	}
	if refused := len(texts) - accepted; accepted < 500 || refused < 20 {
		t.Errorf("generated %d valid and %d invalid texts, want at least 500 and 20", accepted, refused)
	}
}

func TestAppendRefusesTextsNestedTooDeep(t *testing.T) {
	for _, text := range [][]byte{
		nested("[", "", "]", MaxDepth+1),
		nested(`{"a":`, "1", "}", MaxDepth+1),
		nested("[", "", "", 1_000_000),
		nested(`[{"a":`, "1", "}]", MaxDepth/2+1),
		append(append([]byte(`{"a":`), nested("[", "", "]", MaxDepth)...), `,"a":1}`...),
	} {
		out, err := Append([]byte("kept"), text)
		if !errors.Is(err, ErrDepth) || string(out) != "kept" {
			t.Errorf("Append(%.20q...) = %.20q, %v; want dst unchanged and ErrDepth", text, out, err)
		}
	}
}

// nested returns inner inside n pairs of open and close.
func nested(open, inner, close string, n int) []byte {
	return []byte(strings.Repeat(open, n) + inner + strings.Repeat(close, n))
}

// manyKeys returns an object with n different keys in shuffled order, each of them twice.
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
