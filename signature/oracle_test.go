package signature_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hookferry/analytics/internal/testkit"
	"github.com/hookferry/analytics/signature"
)

var update = flag.Bool("update", false, "rewrite the golden file from Node")

const golden = "testdata/golden.txt"

// bodies have the form that JSON.stringify writes, as all webhook bodies have.
var bodies = []string{
	`{"version":1,"type":"track","userId":"u1","event":"Signed Up","properties":{},"timestamp":"2026-01-02T03:04:05.678Z"}`,
	`{"type":"delete","userId":"u1","timestamp":"2026-01-02T03:04:05.678Z"}`,
	`{"1":"first","b":2,"a":1,"__proto__":{"x":null}}`,
	`{"html":"<a href='?x=1&y=2'>","separators":"` + "\u2028\u2029\u007f" + `","controls":"\u0000\u001f\b\f\n\r\t"}`,
	`{"emoji":"` + "\U0001F98A" + `","lone":"\ud83e","name":"Zoë Łukasz 東京"}`,
	`{"n":[0,1.5,1e+21,1e-7,123456789012345680000,5e-324,1.7976931348623157e+308]}`,
	`{}`,
	`null`,
	`"` + strings.Repeat("long ", 10000) + `"`,
}

var secrets = []signature.Secret{
	"s",
	"a usual secret",
	"clé 秘密 \U0001F511",
	" \t leading and trailing \n",
	signature.Secret(strings.Repeat("64 bytes", 8)),
	signature.Secret(strings.Repeat("64 bytes", 8) + "+"),
	signature.Secret(strings.Repeat("longer than a block of the hash ", 20)),
}

// signed returns the signatures of every body, first with every secret for X-Signature, and then
// with a private key. questions is the input of the Node program: bodies and secrets.
func signed(t *testing.T) (got []string, questions *bytes.Buffer) {
	t.Helper()
	questions = new(bytes.Buffer)
	enc := json.NewEncoder(questions)
	for _, secret := range secrets {
		for _, body := range bodies {
			s, err := signature.Sign([]byte(body), secret)
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, s)
			if err := enc.Encode(map[string]string{"secret": secret.Reveal(), "body": body}); err != nil {
				t.Fatal(err)
			}
		}
	}
	const id, at = "msg_1", 1614265330
	for _, body := range bodies {
		s, err := signature.SignStandard([]byte(body), id, time.Unix(at, 0), specPrivate)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, s)
		if err := enc.Encode(map[string]any{"secret": specPrivate, "body": body, "id": id, "time": at}); err != nil {
			t.Fatal(err)
		}
	}
	return got, questions
}

// The golden file has the signatures that Node computed.
func TestSignAgreesWithGolden(t *testing.T) {
	got, _ := signed(t)
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Fields(string(want)), got); diff != "" {
		t.Errorf("%s and Sign differ (-golden +sign):\n%s", golden, diff)
	}
}

// A receiver in Node computes the same signatures.
func TestSignAgreesWithNode(t *testing.T) {
	cmd := exec.Command(testkit.Program(t, "node", "apt-get install nodejs, or https://nodejs.org"), "testdata/oracle.js")
	got, questions := signed(t)
	cmd.Stdin, cmd.Stderr = questions, os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Fields(string(out)), got); diff != "" {
		t.Errorf("Node and Sign differ (-node +sign):\n%s", diff)
	}
	if *update {
		if err := os.WriteFile(golden, out, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
