package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"reprise/codegen/cpu"
	"reprise/runtime/exe"
)

const (
	tiny = "builtin:mlp,in=20,hidden=37,layers=2,batch=6"
	gpt  = "builtin:gpt,layers=1,d=16,heads=2,seq=8,batch=2,vocab=256"
)

// made is what the commands of all tests share, as those of one command do.
var made struct {
	drivers exe.Drivers
	objects cpu.Objects
}

func TestMain(m *testing.M) {
	code := m.Run()
	_ = made.drivers.Close()
	os.Exit(code)
}

// cli runs the command in this process.
func cli(list ...string) (status int, stdout, stderr string) {
	return with(&made.drivers, list...)
}

// with is cli with drivers of its own.
func with(drivers *exe.Drivers, list ...string) (status int, stdout, stderr string) {
	var out, err bytes.Buffer
	a := &app{out: &out, err: &err, drivers: drivers, objects: &made.objects}
	status = a.run(context.Background(), list)
	return status, out.String(), err.String()
}

// ok runs a command that must succeed, and gives what it prints.
func ok(t *testing.T, list ...string) string {
	t.Helper()
	status, out, err := cli(list...)
	require.Equal(t, 0, status, "reprise %s\n%s", strings.Join(list, " "), err)
	return out
}

// document reads the one JSON document of an output.
func document(t *testing.T, text string) map[string]any {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(text))
	var doc map[string]any
	require.NoError(t, d.Decode(&doc), text)
	assert.False(t, d.More(), "more than one document: %s", text)
	return doc
}

func toolchain(t *testing.T) {
	t.Helper()
	for _, tool := range []string{"clang-19", "ld.lld-19"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip(tool + " is not installed")
		}
	}
}

func write(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	require.NoError(t, os.WriteFile(path, []byte(text), 0o666))
	return path
}

const vector = `module "vec"

func @step(%x: f32[3,4] {feed="normal", role="input"}, %n: i32[3] {feed="uniform_int:5", role="input"}) -> (y, m) {
  %y = tanh %x : f32[3,4] loc(layers.0.act)
  %m = add %n, %n : i32[3] loc(layers.1.twice)
  return %y, %m
}
`

// TestErrors holds the text and the JSON form of refusals, and their exit status.
func TestErrors(t *testing.T) {
	dir := t.TempDir()
	unknown := write(t, dir, "unknown.ir", "module \"m\"\n\nfunc @step(%x: f32[3]) -> (y) {\n  %y = frob %x : f32[3] loc(a.b)\n  return %y\n}\n")
	shape := write(t, dir, "shape.ir", "module \"m\"\n\nfunc @step(%x: f32[3], %w: f32[4]) -> (y) {\n  %y = add %x, %w : f32[3] loc(layers.0.fc)\n  return %y\n}\n")
	broken := write(t, dir, "broken.ir", "module \"m\"\n\nfunc @step(%x: f32[3) -> (y) {\n  return %x\n}\n")
	vec := write(t, dir, "vec.ir", vector)
	out := filepath.Join(dir, "out")
	graph := write(t, dir, "half.json", "{")
	for _, c := range []struct {
		name   string
		args   []string
		status int
		text   []string       // parts of what stands on stderr
		json   map[string]any // fields of the error
	}{
		{"unknown model", []string{"compile", "builtin:nope", "-o", out}, 1, []string{`no builtin model "nope"`, "hint: models: mlp, gpt,"},
			map[string]any{"code": "model", "message": `no builtin model "nope"`}},
		{"no file", []string{"plan", dir + "/none.ir"}, 1, []string{"no file ", "none.ir", "hint: supported so far"}, map[string]any{"code": "model"}},
		{"builtin without its prefix", []string{"plan", "gpt,layers=2"}, 1, []string{"did you mean builtin:gpt,layers=2?"}, map[string]any{"code": "model"}},
		{"unknown option", []string{"plan", "builtin:mlp,foo=3"}, 1, []string{`builtin:mlp: no option "foo"`, "hint: options: layers, in, hidden"},
			map[string]any{"message": `builtin:mlp: no option "foo"`}},
		{"unknown flag", []string{"plan", tiny, "--wrong"}, 2, []string{"unknown flag: --wrong"}, map[string]any{"code": "usage"}},
		{"unknown command", []string{"frobnicate"}, 2, []string{`unknown command "frobnicate"`, "compile"}, map[string]any{"code": "usage"}},
		{"unknown pass", []string{"opt", vec, "--passes", "canon,nope"}, 2, []string{`unknown pass "nope": passes are canon, dce,`}, map[string]any{"code": "usage"}},
		{"unknown target", []string{"plan", tiny, "--target", "cpu:z80"}, 1, []string{`unknown target "cpu:z80"`, "cpu:x86-64-v3"}, map[string]any{"code": "target"}},
		{"bad budget", []string{"plan", tiny, "--budget", "banana"}, 2, []string{`budget "banana" is no number of bytes`, "write 512MiB"}, map[string]any{"code": "usage"}},
		{"no output", []string{"compile", tiny}, 2, []string{"-o OUT is missing"}, map[string]any{"code": "usage"}},
		{"unknown text", []string{"compile", tiny, "-o", out, "--emit", "asm"}, 2, []string{"--emit \"asm\": want some of ir, kern, llvm, "}, map[string]any{"code": "usage"}},
		{"settings of a finished step", []string{"plan", vec, "--lr", "1"}, 1, []string{"have nowhere to go"}, map[string]any{"code": "option"}},
		{"plan of a graph", []string{"explain", write(t, dir, "plan.json", `{"format":"reprise.plan/1","order":[]}`)}, 1, []string{"no plan of a model", "reprise check"},
			map[string]any{"code": "plan"}},
		{"no model", []string{"compile"}, 2, []string{"accepts 1 arg(s)", "usage: reprise compile MODEL -o OUT"}, map[string]any{"code": "usage"}},
		{"unknown variant", []string{"compile", tiny, "-o", out, "--math", "tf32"}, 1, []string{`no numeric variant "tf32"`}, map[string]any{"code": "math"}},
		{"unknown op", []string{"opt", unknown}, 1, []string{unknown + ":4:8: ", `unknown operation "frob"`}, map[string]any{"file": unknown, "line": 4.0, "col": 8.0}},
		{"malformed", []string{"compile", broken, "-o", out}, 1, []string{broken + ":3:21: ", `want ",", found ")"`},
			map[string]any{"code": "parse", "file": broken, "line": 3.0, "col": 21.0}},
		{"shapes", []string{"compile", shape, "-o", out}, 1, []string{shape + ":4:3: layer layers.0.fc: add: ", "f32[3] and f32[4]"},
			map[string]any{"code": "shape", "layer": "layers.0.fc", "op": "add", "line": 4.0}},
		{"open shape", []string{"plan", vec, "--bind", "x=4,128"}, 1, []string{"its shapes are fixed"}, map[string]any{"code": "option"}},
		{"bad binding", []string{"plan", vec, "--bind", "x=a"}, 2, []string{`"a" is not a size`}, map[string]any{"code": "usage"}},
		{"half a graph", []string{"plan", graph}, 1, []string{graph + ": line 1: "}, map[string]any{"code": "graph", "file": graph}},
		{"no graph", []string{"check", dir + "/none.json", graph}, 1, []string{"can't read", "no such file", "hint: look at the path"}, map[string]any{"code": "file"}},
		{"no input", []string{"run", vec, "--interpret"}, 1, []string{`no --input for "x" (f32[3,4])`}, map[string]any{"code": "input"}},
		{"wrong input", []string{"run", vec, "--interpret", "--input", "q=q.npy"}, 1, []string{`no input "q"`, "x (f32[3,4])"}, map[string]any{"code": "input"}},
		{"over the model", []string{"compile", vec, "-o", strings.TrimSuffix(vec, ".ir"), "--emit", "ir"}, 1, []string{vec + " would be written over: it is the model", "another name"}, map[string]any{"code": "file"}},
		{"no value", []string{"explain", tiny, "layers.99.*"}, 1, []string{`"layers.99.*" is no value, and no layer matches it`, "hint: layers: "}, map[string]any{"code": "explain"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			status, stdout, stderr := cli(c.args...)
			assert.Equal(t, c.status, status)
			assert.Empty(t, stdout)
			assert.True(t, strings.HasPrefix(stderr, "reprise: "), stderr)
			for _, part := range c.text {
				assert.Contains(t, stderr, part)
			}
			assert.NotContains(t, stderr, "goroutine")
			status, stdout, stderr = cli(append(c.args, "--json")...)
			assert.Equal(t, c.status, status)
			assert.Empty(t, stderr)
			e, _ := document(t, stdout)["error"].(map[string]any)
			require.NotNil(t, e, stdout)
			assert.NotEmpty(t, e["message"])
			for k, v := range c.json {
				assert.Equal(t, v, e[k], k)
			}
		})
	}
	left, err := filepath.Glob(out + "*")
	require.NoError(t, err)
	assert.Empty(t, left, "a refused compilation leaves nothing")
}

// TestUnmeetableBudget: the error has the smallest budget found, what no plan can beat, and what binds.
func TestUnmeetableBudget(t *testing.T) {
	status, stdout, stderr := cli("plan", tiny, "--train", "--budget", "1KiB")
	assert.Equal(t, 1, status)
	assert.Empty(t, stdout)
	assert.Regexp(t, `no plan fits in 1\.0 KiB \(1024 bytes\): the smallest budget found is [0-9.]+ KiB \(\d+ bytes\), and no plan can do with less than [0-9.]+ KiB \(\d+ bytes\); `+
		`most is in memory, [0-9.]+ KiB, at op \d+ of \d+, \S+; the largest of \d+ values there:(\n +[0-9.]+ K?i?B  .* \(layer .*\)){10}\n  no pinned value`, stderr)
	assert.Contains(t, stderr, "param layers.1.fc.w (layer layers.1.fc, f32[37,37])")
	assert.Regexp(t, `hint: give at least --budget \d+B`, stderr)
	status, stdout, _ = cli("plan", tiny, "--train", "--budget", "1KiB", "--json")
	assert.Equal(t, 1, status)
	e := document(t, stdout)["error"].(map[string]any)
	assert.Equal(t, "budget", e["code"])
	least, lower := e["min_budget_bytes"].(float64), e["lower_bound_bytes"].(float64)
	assert.Greater(t, lower, 1024.0)
	assert.GreaterOrEqual(t, least, lower)
	peak := e["peak"].(map[string]any)
	assert.NotEmpty(t, peak["op"])
	assert.Less(t, peak["position"], peak["of"])
	assert.LessOrEqual(t, peak["bytes"], least)
	binding := e["binding"].([]any)
	require.Len(t, binding, 10)
	last := 1e18
	for _, b := range binding {
		b := b.(map[string]any)
		assert.NotEmpty(t, b["name"])
		assert.LessOrEqual(t, b["bytes"].(float64), last, "largest first")
		last = b["bytes"].(float64)
	}
	// What it says can be met is met, and less than what it proves is not.
	var r struct {
		Arena int64 `json:"arena_bytes"`
	}
	text := ok(t, "plan", tiny, "--train", "--json", "--budget", jsonNumber(least)+"B")
	require.NoError(t, json.Unmarshal([]byte(text), &r))
	assert.LessOrEqual(t, float64(r.Arena), least)
	status, _, _ = cli("plan", tiny, "--train", "--budget", jsonNumber(lower-1)+"B")
	assert.Equal(t, 1, status)
}

func jsonNumber(x float64) string {
	b, _ := json.Marshal(int64(x))
	return string(b)
}

// TestToolchain: without compiler or linker the error is the command that installs them, and nothing is written.
func TestToolchain(t *testing.T) {
	dir := t.TempDir()
	out := write(t, dir, "out", "old")
	t.Setenv("PATH", dir)
	status, _, stderr := cli("compile", tiny, "-o", out)
	assert.Equal(t, 1, status)
	assert.Contains(t, stderr, "clang-19 was not found")
	assert.Contains(t, stderr, "apt-get install -y clang-19 lld-19")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "clang-19"), []byte("#!/bin/sh\nexit 1\n"), 0o777))
	status, stdout, _ := cli("compile", tiny, "-o", out, "--json")
	assert.Equal(t, 1, status)
	e := document(t, stdout)["error"].(map[string]any)
	assert.Equal(t, "toolchain", e["code"])
	assert.Equal(t, "ld.lld-19 was not found", e["message"])
	assert.Contains(t, e["hint"], "apt-get install -y lld-19")
	status, stdout, _ = cli("doctor")
	assert.Equal(t, 1, status)
	assert.Contains(t, stdout, "MISS  ld.lld-19")
	data, err := os.ReadFile(out)
	require.NoError(t, err)
	assert.Equal(t, "old", string(data))
}

// TestOutputIsWhole: where the last step fails, an old OUT stays as it was and nothing lies beside it.
func TestOutputIsWhole(t *testing.T) {
	toolchain(t)
	clang, err := exec.LookPath("clang-19")
	require.NoError(t, err)
	dir, tools := t.TempDir(), t.TempDir()
	script := "#!/bin/sh\ncase \"$*\" in *-fuse-ld*) echo 'no space left' >&2; exit 1;; esac\nexec " + clang + " \"$@\"\n"
	require.NoError(t, os.WriteFile(filepath.Join(tools, "clang-19"), []byte(script), 0o777))
	t.Setenv("PATH", tools+":"+os.Getenv("PATH"))
	out := write(t, dir, "out", "old")
	var drivers exe.Drivers // of this compiler
	t.Cleanup(func() { assert.NoError(t, drivers.Close()) })
	status, _, stderr := with(&drivers, "compile", tiny, "-o", out)
	assert.Equal(t, 1, status)
	assert.Contains(t, stderr, "no space left")
	data, err := os.ReadFile(out)
	require.NoError(t, err)
	assert.Equal(t, "old", string(data))
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Len(t, entries, 1)
}

// TestOutputDirectory: OUT in a directory that is not there.
func TestOutputDirectory(t *testing.T) {
	toolchain(t)
	status, _, stderr := cli("compile", tiny, "-o", filepath.Join(t.TempDir(), "none", "out"))
	assert.Equal(t, 1, status)
	assert.Contains(t, stderr, "none")
	assert.Contains(t, stderr, "no such file or directory")
}

// TestPlannedIsRefused: a program that was planned is not planned again.
func TestPlannedIsRefused(t *testing.T) {
	toolchain(t)
	dir := t.TempDir()
	out := filepath.Join(dir, "m")
	ok(t, "compile", tiny, "--train", "--budget", "min", "-o", out, "--emit", "ir,plan,kern,llvm,dot="+dir)
	for _, f := range []string{"m.ir", "m.plan.json", "m.kern", "m.0.ll", "step.dot"} {
		info, err := os.Stat(filepath.Join(dir, f))
		require.NoError(t, err)
		assert.Positive(t, info.Size())
	}
	for _, list := range [][]string{{"compile", out + ".ir", "-o", out + "2"}, {"plan", out + ".ir"}, {"opt", out + ".ir", "--passes", "cse"}} {
		status, _, stderr := cli(list...)
		assert.Equal(t, 1, status)
		assert.Contains(t, stderr, "planned")
		assert.Contains(t, stderr, "hint: ")
	}
	// It can still be read and printed.
	text, err := os.ReadFile(out + ".ir")
	require.NoError(t, err)
	assert.Equal(t, string(text), ok(t, "opt", out+".ir"))
}

const graph = `{"format":"reprise.graph/1","ops":[
{"name":"a","cost":5,"inputs":[0],"outputs":[1]},
{"name":"b","cost":3,"inputs":[1],"outputs":[2]},
{"name":"c","cost":2,"inputs":[1,2],"outputs":[3]}],
"values":[{"name":"x","bytes":10,"resident":true},{"name":"va","bytes":100},{"name":"vb","bytes":20},{"name":"vc","bytes":10,"output":true}],
"order":[0,1,2]}`

// TestGraphFiles plans a graph and checks plans, good and broken.
func TestGraphFiles(t *testing.T) {
	dir := t.TempDir()
	g, p := write(t, dir, "g.json", graph), filepath.Join(dir, "p.json")
	assert.Regexp(t, `^peak 140, cost 10 `, ok(t, "plan", g))
	assert.Regexp(t, `^peak 140 of 150, cost 10 `, ok(t, "plan", g, "--budget", "150", "-o", p))
	assert.Equal(t, "ok peak=140 cost=10\n", ok(t, "check", g, p))
	assert.Regexp(t, `^peak 140 of 140, `, ok(t, "plan", g, "--budget", "min"))
	doc := document(t, ok(t, "check", g, p, "--budget", "140", "--json"))
	assert.Equal(t, map[string]any{"ok": true, "peak": 140.0, "cost": 10.0, "recomputed": 0.0}, doc)
	plan := document(t, ok(t, "plan", g, "--json"))
	for _, k := range []string{"format", "order", "cost", "base_cost", "overhead", "peak_bytes", "budget_bytes", "lower_bound", "gap", "proof", "offsets", "arena_bytes", "seconds", "solver", "seed"} {
		assert.Contains(t, plan, k)
	}
	good, err := os.ReadFile(p)
	require.NoError(t, err)
	bad := write(t, dir, "bad.json", strings.Replace(string(good), "[0,1,2]", "[1,0,2]", 1))
	status, stdout, _ := cli("check", g, bad)
	assert.Equal(t, 1, status)
	assert.Equal(t, "input: op 1 \"b\" reads value 1 \"va\" before it is computed (position 0, op 1 \"b\", value 1 \"va\")\n", stdout)
	status, stdout, _ = cli("check", g, bad, "--json")
	assert.Equal(t, 1, status)
	e := document(t, stdout)["error"].(map[string]any)
	assert.Equal(t, "check", e["code"])
	assert.Regexp(t, `^input: op 1 `, e["message"])
	status, stdout, _ = cli("check", g, p, "--budget", "100")
	assert.Equal(t, 1, status)
	assert.Regexp(t, `^budget: the peak of 140 bytes exceeds the budget of 100 bytes \(position 2`, stdout)
	status, stdout, _ = cli("plan", g, "--budget", "50", "--json")
	assert.Equal(t, 1, status)
	e = document(t, stdout)["error"].(map[string]any)
	assert.Equal(t, []any{"budget", 140.0, 140.0}, []any{e["code"], e["min_budget_bytes"], e["lower_bound_bytes"]})
	assert.Equal(t, "va", e["binding"].([]any)[0].(map[string]any)["name"])
	status, _, stderr := cli("plan", g, "--budget", "12MiB")
	assert.Equal(t, 2, status)
	assert.Contains(t, stderr, "a number in the file's unit")
	_, _, stderr = cli("plan", g, "--budget", "100")
	assert.Contains(t, stderr, "3 of the 3 ops are of unknown determinism")
}

// TestExplain shows values of a model and of a binary, by name and by layer.
func TestExplain(t *testing.T) {
	text := ok(t, "explain", tiny, "--train")
	assert.Regexp(t, `^arena [0-9.]+ KiB \(\d+ bytes\): \d+ for the whole step, \d+ at the peak \(op \d+, \S+\), \d+ unused\npeak .*\n.*\n.*\n\d+ values, 40 shown\n`, text)
	assert.Contains(t, text, "BYTES")
	assert.Contains(t, text, "a parameter: in memory from step to step")
	assert.Contains(t, ok(t, "explain", tiny, "contract", "--train"), "out:contract ")
	byLayer := ok(t, "explain", tiny, "layers.1.*", "--train")
	assert.Contains(t, byLayer, "layers.1.fc")
	assert.NotContains(t, byLayer, "layers.0.fc")
	var doc struct {
		Values []struct{ Name, ID, Layer, Op, Type, Fate, Reason string }
		Report map[string]any
	}
	require.NoError(t, json.Unmarshal([]byte(ok(t, "explain", tiny, "layers.1", "--train", "--json")), &doc))
	require.NotEmpty(t, doc.Values)
	for _, v := range doc.Values {
		assert.Regexp(t, `^layers\.1\b`, v.Layer)
		assert.NotEmpty(t, v.Reason)
		assert.NotEmpty(t, v.Fate)
	}
	assert.Contains(t, doc.Report, "arena_bytes")
	one := doc.Values[0]
	assert.Contains(t, ok(t, "explain", tiny, "%"+one.ID, "--train"), one.Name)
	assert.Contains(t, ok(t, "explain", tiny, one.Name, "--train"), one.Name)
	plan := filepath.Join(t.TempDir(), "p.json")
	ok(t, "plan", tiny, "--train", "-o", plan)
	assert.Equal(t, byLayer, ok(t, "explain", plan, "layers.1.*"))
	status, _, stderr := cli("explain", tiny, "[", "--train")
	assert.Equal(t, 2, status)
	assert.Contains(t, stderr, `pattern "["`)
	toolchain(t)
	bin := filepath.Join(t.TempDir(), "m")
	ok(t, "compile", tiny, "--train", "-o", bin)
	page := filepath.Join(t.TempDir(), "page.html")
	assert.Equal(t, byLayer, ok(t, "explain", bin, "layers.1.*", "--html", page))
	html, err := os.ReadFile(page)
	require.NoError(t, err)
	assert.Contains(t, string(html), "<svg")
	assert.Contains(t, string(html), "layers.1.fc")
}

// TestOpt: the text form round-trips, and passes run by name.
func TestOpt(t *testing.T) {
	dir := t.TempDir()
	vec := write(t, dir, "vec.ir", vector)
	assert.Equal(t, vector, ok(t, "opt", vec))
	whole := ok(t, "opt", gpt)
	again := write(t, dir, "gpt.ir", whole)
	assert.Equal(t, whole, ok(t, "opt", again))
	assert.Contains(t, whole, "gradient")
	differentiated := ok(t, "opt", again, "--passes", "canon,dce,cse,autodiff")
	assert.NotContains(t, differentiated, "gradient %")
	assert.Contains(t, differentiated, "~vjp")
	assert.Contains(t, ok(t, "opt", again, "--passes", "all"), "fused")
	assert.Contains(t, ok(t, "opt", "--list"), "autodiff before expand: ")
}

// TestRun: the compiled program and the interpreter write the same files from the same inputs.
func TestRun(t *testing.T) {
	toolchain(t)
	dir := t.TempDir()
	vec := write(t, dir, "vec.ir", vector)
	x := npy("<f4", "(3, 4)", []byte{0, 0, 128, 63, 0, 0, 0, 64, 0, 0, 128, 191, 0, 0, 0, 0}, 3)
	n := npy("<i4", "(3,)", []byte{1, 0, 0, 0}, 3)
	inputs := []string{"--input", "x=" + write(t, dir, "x.npy", x), "--input", "n=" + write(t, dir, "n.npy", n)}
	a, b, c := filepath.Join(dir, "a"), filepath.Join(dir, "b"), filepath.Join(dir, "c")
	ok(t, append([]string{"run", vec, "--output", a}, inputs...)...)
	ok(t, append([]string{"run", vec, "--output", b, "--interpret"}, inputs...)...)
	bin := filepath.Join(dir, "vec")
	ok(t, "compile", vec, "-o", bin)
	text := ok(t, append([]string{"run", bin, "--output", c, "--json", "--threads", "2", "--repeat", "3"}, inputs...)...)
	var last map[string]any
	for _, line := range strings.Split(strings.TrimSpace(text), "\n") {
		last = nil
		require.NoError(t, json.Unmarshal([]byte(line), &last), line)
	}
	assert.Equal(t, true, last["done"])
	assert.Len(t, last["outputs"], 2)
	for _, name := range []string{"y.npy", "m.npy"} {
		want, err := os.ReadFile(filepath.Join(b, name))
		require.NoError(t, err)
		for _, d := range []string{a, c} {
			got, err := os.ReadFile(filepath.Join(d, name))
			require.NoError(t, err)
			assert.Equal(t, want[len(want)-12:], got[len(got)-12:], name)
		}
	}
	// Wrong files.
	short := write(t, dir, "short.npy", npy("<f4", "(2, 4)", []byte{0, 0, 0, 0}, 8))
	for _, way := range [][]string{nil, {"--interpret"}} {
		status, _, stderr := cli(append([]string{"run", vec, "--input", "x=" + short, "--input", "n=" + filepath.Join(dir, "n.npy")}, way...)...)
		assert.Equal(t, 1, status)
		assert.Contains(t, stderr, "3")
		assert.Contains(t, stderr, "x")
		status, _, stderr = cli(append([]string{"run", vec, "--input", "x=" + dir + "/none.npy"}, way...)...)
		assert.Equal(t, 1, status)
		assert.Contains(t, stderr, "none.npy")
	}
}

// npy is a file of n copies of data.
func npy(descr, shape string, data []byte, n int) string {
	head := "{'descr': '" + descr + "', 'fortran_order': False, 'shape': " + shape + ", }"
	for (10+len(head)+1)%64 != 0 {
		head += " "
	}
	head += "\n"
	return "\x93NUMPY\x01\x00" + string([]byte{byte(len(head)), byte(len(head) >> 8)}) + head + strings.Repeat(string(data), n)
}

// TestTrainErrors: what a training program says of its data and its checkpoints.
func TestTrainErrors(t *testing.T) {
	toolchain(t)
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	report := document(t, ok(t, "compile", gpt, "--train", "-o", a, "--json"))
	for _, k := range strings.Fields(`model target budget_bytes promised_peak_bytes arena_bytes resident_bytes save_all_peak_bytes min_budget_bytes
		cost_ns base_cost_ns overhead lower_bound_ns gap ops kernels saved recomputed pinned plan_seconds compile_seconds binary_bytes input_sha256 binary_sha256`) {
		assert.Contains(t, report, k)
	}
	ok(t, "compile", tiny, "--train", "-o", b)
	good := filepath.Join(dir, "good.safetensors")
	sh := func(script string, list ...string) (int, string, string) {
		var out, errs bytes.Buffer
		c := exec.Command("sh", append([]string{"-c", script, "sh"}, list...)...)
		c.Stdout, c.Stderr = &out, &errs
		_ = c.Run()
		return c.ProcessState.ExitCode(), out.String(), errs.String()
	}
	status, _, errs := sh(`"$@"`, a, "--steps", "2", "--save", good, "--quiet")
	require.Equal(t, 0, status, errs)
	saved, err := os.ReadFile(good)
	require.NoError(t, err)
	other := filepath.Join(dir, "other.safetensors")
	status, _, errs = sh(`"$@"`, b, "--steps", "1", "--save", other, "--quiet")
	require.Equal(t, 0, status, errs)
	text := write(t, dir, "short.txt", "hi")
	cut := write(t, dir, "cut.safetensors", string(saved[:len(saved)/2]))
	for _, c := range []struct {
		name, script string
		args         []string
		code, text   string
	}{
		{"data missing", `"$@"`, []string{"--data", dir + "/none"}, "data", "No such file or directory"},
		{"data too short", `"$@"`, []string{"--data", text}, "data", "is too short: a window of 8 tokens and its successor needs 9 bytes, it has 2"},
		{"another model's", `"$@"`, []string{"--resume", other}, "checkpoint", "is a checkpoint of another model"},
		{"cut short", `"$@"`, []string{"--resume", cut}, "checkpoint", "is cut short"},
		{"disk full", `trap '' XFSZ; ulimit -f 1; exec "$@"`, []string{"--save", good}, "io", good},
	} {
		t.Run(c.name, func(t *testing.T) {
			status, out, errs := sh(c.script, append([]string{a, "--steps", "1", "--quiet"}, c.args...)...)
			assert.Equal(t, 1, status)
			assert.Empty(t, out)
			assert.Contains(t, errs, c.text)
			status, out, _ = sh(c.script, append([]string{a, "--steps", "1", "--json"}, c.args...)...)
			assert.Equal(t, 1, status)
			lines := strings.Split(strings.TrimSpace(out), "\n")
			e, _ := document(t, lines[len(lines)-1])["error"].(map[string]any)
			require.NotNil(t, e, out)
			assert.Equal(t, c.code, e["code"])
			assert.Contains(t, e["message"], c.text)
		})
	}
	now, err := os.ReadFile(good)
	require.NoError(t, err)
	assert.True(t, bytes.Equal(saved, now), "the old file stays whole when the disk is full")
	left, err := filepath.Glob(good + "?*")
	require.NoError(t, err)
	assert.Empty(t, left)
	status, _, errs = sh(`"$@"`, a, "--steps", "1", "--data", dir+"/none")
	assert.Equal(t, 1, status)
	assert.Contains(t, errs, "hint: look at the path")
	// A file that is written to between two steps.
	growing := write(t, dir, "growing.txt", strings.Repeat("a line of text\n", 100))
	status, _, errs = sh(`f=$1; shift; (while :; do echo more >> "$f"; sleep 0.01; done) & w=$!; "$@"; r=$?; kill $w; exit $r`, growing, a, "--steps", "1000000", "--data", growing, "--quiet")
	assert.Equal(t, 1, status)
	assert.Regexp(t, `growing\.txt changed while it was read: it had \d+ bytes, now it has \d+\n  hint: leave the file alone`, errs)
	// The same through the command.
	status, _, errs = cli("train", gpt, "--data", text, "--steps", "1")
	assert.Equal(t, 1, status)
	assert.Contains(t, errs, "is too short")
	// A run that is resumed keeps the seed that it began with.
	seeded := filepath.Join(dir, "seeded.safetensors")
	ok(t, "train", tiny, "--steps", "1", "--seed", "5", "--save", seeded)
	resumed := ok(t, "train", tiny, "--steps", "1", "--resume", seeded, "--json")
	assert.Contains(t, resumed, `"seed":5`)
	assert.Contains(t, resumed, `"done":true`)
}

// TestVerify: a planned program has the bits of the one that keeps everything and of the interpreter.
func TestVerify(t *testing.T) {
	toolchain(t)
	text := ok(t, "verify", tiny, "--steps", "2")
	assert.Contains(t, text, "same bits: ")
	assert.Contains(t, text, "and against the interpreter")
	doc := document(t, ok(t, "verify", gpt, "--steps", "1", "--json"))
	assert.Equal(t, true, doc["ok"])
	assert.Equal(t, 0.0, doc["pinned_run_twice"])
}

// TestHelp: every command says what it does and shows an example.
func TestHelp(t *testing.T) {
	root := (&app{out: &bytes.Buffer{}, err: &bytes.Buffer{}}).root()
	for _, c := range root.Commands() {
		text := ok(t, c.Name(), "--help")
		assert.Contains(t, text, "Usage:", c.Name())
		if c.Name() != "completion" && c.Name() != "help" {
			assert.NotEmpty(t, c.Example, "%s has no example", c.Name())
			assert.Contains(t, text, "reprise "+c.Name(), c.Name())
		}
	}
	assert.Contains(t, ok(t, "--help"), "compile")
	assert.Contains(t, ok(t, "models"), "builtin:gpt")
}

// TestCompletion: the scripts are made, and bash takes its own.
func TestCompletion(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		script := ok(t, "completion", shell)
		assert.Contains(t, script, "reprise", shell)
		if path, err := exec.LookPath(shell); err == nil && shell == "bash" {
			c := exec.Command(path, "-n")
			c.Stdin = strings.NewReader(script)
			out, err := c.CombinedOutput()
			assert.NoError(t, err, "%s", out)
		}
	}
	assert.Contains(t, ok(t, "__complete", "compile", "builtin:m"), "builtin:mlp")
	assert.Contains(t, ok(t, "__complete", "compile", "--target", ""), "cpu:x86-64-v3")
}
