package exe_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"math"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"reprise/ir/dtype"
	"reprise/runtime/exe"
	"reprise/runtime/internal/fixture"
)

func TestTrain(t *testing.T) {
	toy := buildProgram(t, fixture.Train())

	t.Run("lines", func(t *testing.T) {
		ls := toy.at(t).lines("--steps", "3", "--threads=2")
		require.Len(t, ls, 4)
		for i, l := range ls[:3] {
			require.Equal(t, int64(i+1), l.Step)
			x, err := strconv.ParseUint(l.LossBits, 16, 32)
			require.NoError(t, err)
			require.Equal(t, math.Float32frombits(uint32(x)), float32(*l.Loss))
			require.False(t, l.Done)
		}
		last := ls[3]
		require.True(t, last.Done)
		require.Equal(t, int64(3), last.Steps)
		require.Equal(t, int64(3), last.Step)
		require.Equal(t, 2, last.Threads)
		require.Equal(t, fixture.Train().ArenaBytes, last.Promised)
		require.Equal(t, last.Promised, last.Arena)
	})

	t.Run("default steps and summary", func(t *testing.T) {
		r := toy.at(t).run()
		require.Equal(t, 0, r.status)
		require.Contains(t, r.stdout, "100 steps, loss ")
		require.Contains(t, r.stdout, "\nstate ")
		require.Empty(t, r.stderr, "no progress where there is no terminal")
		r = toy.at(t).run("--quiet")
		require.Equal(t, result{}, r)
	})

	t.Run("same bits", func(t *testing.T) {
		p := toy.at(t)
		want := bits(p.lines("--steps", "20", "--threads", "1"))
		for _, args := range [][]string{{"--threads", "2"}, {"--threads", "3"}, {"--threads", "7"}, {}, {"--poison"}, {"--profile", "--threads", "2"}, {"--seed", "0"}} {
			got := p.lines(append([]string{"--steps", "20"}, args...)...)
			if len(args) > 0 && args[0] == "--profile" {
				got = append(got[:20], got[21])
			}
			require.Equal(t, want, bits(got), "%v", args)
		}
		require.NotEqual(t, want, bits(p.lines("--steps", "20", "--seed", "1")))
	})

	t.Run("memory is what was promised", func(t *testing.T) {
		last := toy.at(t).lines("--steps", "2", "--poison")[2]
		require.LessOrEqual(t, last.Peak-last.Other, last.Promised)
		require.Positive(t, last.Peak-last.Other)
		require.Less(t, last.Other, int64(16<<20))
		require.Equal(t, last.Promised, last.Highest)
	})

	t.Run("the hash is that of the state by name", func(t *testing.T) {
		p := toy.at(t)
		last := p.lines("--steps", "2", "--save", "c.safetensors")[2]
		file := p.read("c.safetensors")
		h := sha256.New()
		for _, name := range []string{"count", "w", "w.m"} {
			h.Write(tensor(t, file, name))
		}
		require.Equal(t, hex.EncodeToString(h.Sum(nil)), last.Hash)
	})

	t.Run("checkpoint's format", func(t *testing.T) {
		p := toy.at(t)
		p.lines("--steps", "2", "--seed", "5", "--save", "c.safetensors")
		require.Equal(t, []string{"c.safetensors"}, p.files(), "no temporary file stays")
		h, data := safetensors(t, p.read("c.safetensors"))
		var meta map[string]string
		require.NoError(t, json.Unmarshal(h["__metadata__"], &meta))
		require.Equal(t, map[string]string{"format": "reprise.checkpoint/1", "input_sha256": strings.Repeat("ab", 32), "model": "toy", "seed": "5", "step": "2"}, meta)
		require.JSONEq(t, `{"dtype":"I64","shape":[32],"data_offsets":[0,256]}`, string(h["count"]))
		require.JSONEq(t, `{"dtype":"F32","shape":[256],"data_offsets":[256,1280]}`, string(h["w"]))
		require.Len(t, data, 256+1024+1024)
	})

	t.Run("a resumed run equals an unbroken one", func(t *testing.T) {
		p := toy.at(t)
		whole := p.lines("--steps", "12", "--seed", "3", "--save", "whole.safetensors")
		p.lines("--steps", "5", "--seed", "3", "--save", "part.safetensors")
		rest := p.lines("--steps", "7", "--resume", "part.safetensors", "--save", "part.safetensors")
		require.Equal(t, bits(whole)[5:], bits(rest))
		require.Equal(t, int64(6), rest[0].Step)
		require.Equal(t, int64(12), rest[7].Step)
		require.Equal(t, uint64(3), rest[7].Seed)
		require.Equal(t, p.read("whole.safetensors"), p.read("part.safetensors"))
		p.lines("--steps", "0", "--resume", "part.safetensors", "--save", "same.safetensors")
		require.Equal(t, p.read("whole.safetensors"), p.read("same.safetensors"))
	})

	t.Run("save every", func(t *testing.T) {
		p := toy.at(t)
		p.lines("--steps", "3", "--save", "three.safetensors")
		r := p.start(func(process *os.Process) {
			// Wait until it has saved, then end it so that it cannot save again.
			for {
				if _, err := os.Stat(p.dir + "/every.safetensors"); err == nil {
					break
				}
			}
			require.NoError(t, process.Kill())
		}, "--steps", "4000000", "--save", "every.safetensors", "--save-every", "3")
		require.NotEqual(t, 0, r.status)
		rest := p.lines("--steps", "1", "--resume", "every.safetensors")
		require.Equal(t, int64(1), rest[0].Step%3)
	})

	t.Run("init takes weights only", func(t *testing.T) {
		p := toy.at(t)
		p.lines("--steps", "4", "--save", "c.safetensors")
		file := p.read("c.safetensors")
		p.lines("--steps", "0", "--init", "c.safetensors", "--save", "d.safetensors")
		d := p.read("d.safetensors")
		require.Equal(t, tensor(t, file, "w"), tensor(t, d, "w"))
		require.Equal(t, tensor(t, file, "count"), tensor(t, d, "count"))
		require.Equal(t, make([]byte, 1024), tensor(t, d, "w.m"), "the optimizer starts anew")
		w := p.write("w.safetensors", makeSafetensors(`{"w":{"dtype":"F32","shape":[256],"data_offsets":[0,1024]}}   `, tensor(t, file, "w")))
		p.lines("--steps", "0", "--init", w, "--save", "e.safetensors")
		require.Equal(t, tensor(t, file, "w"), tensor(t, p.read("e.safetensors"), "w"))
	})

	t.Run("signals", func(t *testing.T) {
		for sig, status := range map[syscall.Signal]int{syscall.SIGINT: 130, syscall.SIGTERM: 143} {
			p := toy.at(t)
			r := p.start(func(process *os.Process) { require.NoError(t, process.Signal(sig)) }, "--steps", "4000000000", "--save", "c.safetensors")
			require.Equal(t, status, r.status, "%s", r.stderr)
			ls := parse(t, r.stdout)
			last := ls[len(ls)-1]
			require.True(t, last.Done)
			require.Equal(t, int64(len(ls)-1), last.Steps)
			rest := p.lines("--steps", "0", "--resume", "c.safetensors")
			require.Equal(t, last.Step, rest[0].Step)
			require.Equal(t, last.Hash, rest[0].Hash)
		}
	})

	t.Run("describe", func(t *testing.T) {
		r := toy.at(t).run("--describe")
		require.Equal(t, 0, r.status)
		var d exe.Description
		require.NoError(t, json.Unmarshal([]byte(r.stdout), &d))
		fromFile, err := exe.ReadDescription(toy.path)
		require.NoError(t, err)
		require.Equal(t, d, fromFile)
		require.Equal(t, "train", d.Kind)
		require.Equal(t, []string{"sse4.2"}, d.Requires)
		require.Equal(t, 3, d.Launches)
		require.Equal(t, 5, d.Kernels)
		require.JSONEq(t, `{"order":[0,1]}`, string(d.Plan))
		require.Equal(t, exe.ValueDescription{Name: "w", Layer: "layer.w", Role: "param", DType: "f32", Shape: []int64{256}, Bytes: 1024}, d.Values[0])
		_, err = exe.ReadDescription("/bin/sh")
		require.EqualError(t, err, "/bin/sh is not a compiled model: it has no section .reprise.describe")
		_, err = exe.ReadDescription("train_test.go")
		require.ErrorContains(t, err, "train_test.go is not a compiled model")
	})

	t.Run("help", func(t *testing.T) {
		r := toy.at(t).run("--help")
		require.Equal(t, 0, r.status)
		for _, want := range []string{"--data FILE", "--steps N", "--seed N", "--threads N", "--init FILE", "--save FILE", "--resume FILE", "--json", "--quiet", "--describe"} {
			require.Contains(t, r.stdout, want)
		}
	})

	t.Run("profile", func(t *testing.T) {
		r := toy.at(t).run("--steps", "3", "--profile", "--threads", "1")
		require.Equal(t, 0, r.status)
		for _, want := range []string{"kernel", "partials", "layer.finish", "update", "in all, per step, on worker 0"} {
			require.Contains(t, r.stderr, want)
		}
	})

	t.Run("usage", func(t *testing.T) {
		for _, c := range []struct{ message, args string }{
			{"unknown flag --foo", "--foo"},
			{"unknown flag --input", "--input x=y.npy"},
			{`unexpected argument "x"`, "x"},
			{"flag --steps needs a value", "--steps"},
			{"flag --steps wants an integer", "--steps -1"},
			{"flag --steps wants an integer", "--steps 1e3"},
			{"flag --threads wants a positive integer", "--threads 0"},
			{"flag --json takes no value", "--json=1"},
			{"too many --threads", "--threads 1025"},
			{"too many --steps", "--steps 5000000000"},
			{"--init and --resume exclude each other", "--init a --resume b"},
			{"--save-every needs --save", "--save-every 3"},
		} {
			p := toy.at(t)
			r := p.run(strings.Fields(c.args)...)
			require.Equal(t, 2, r.status, c.args)
			require.Equal(t, "toy: error: "+c.message+"\n  hint: --help lists the flags\n", r.stderr)
			r = p.run(append(strings.Fields(c.args), "--json")...)
			require.Equal(t, 2, r.status, c.args)
		}
	})

	t.Run("checkpoint errors", func(t *testing.T) {
		p := toy.at(t)
		p.lines("--steps", "1", "--seed", "1", "--save", "good.safetensors")
		good := p.read("good.safetensors")
		h, data := safetensors(t, good)
		header := string(good[8 : len(good)-len(data)])
		changed := func(old, new string) []byte {
			require.Contains(t, header, old)
			return makeSafetensors(strings.Replace(header, old, new, 1), data)
		}
		require.NotNil(t, h)
		for _, c := range []struct {
			name          string
			file          []byte
			message, hint string
		}{
			{"empty", nil, "c.safetensors is cut short: 0 bytes, a safetensors file has at least 8", ""},
			{"header cut", good[:100], "c.safetensors is cut short: its header takes 352 bytes, 92 are there", ""},
			{"data cut", good[:len(good)-1], "c.safetensors is cut short: its tensors take 2304 bytes, 2303 are there", ""},
			{"more data", append(good[:len(good):len(good)], 0), "c.safetensors is damaged: its tensors take 2304 bytes, 2305 are there", ""},
			{"huge header", []byte("\xff\xff\xff\xff\x00\x00\x00\x00{}"), "c.safetensors is not a safetensors file: its header would take 4294967295 bytes", ""},
			{"not JSON", makeSafetensors("[]", nil), "c.safetensors is damaged or not a safetensors file: header byte 0: want '{'", ""},
			{"JSON cut", makeSafetensors(`{"w":{"dtype":"F32"`, nil), "c.safetensors is damaged or not a safetensors file: header byte 19: want '}' or ','", ""},
			{"after the object", makeSafetensors(`{}x`, nil), "c.safetensors is damaged or not a safetensors file: header byte 3: bytes after the end of the header's object", ""},
			{"unknown field", makeSafetensors(`{"w":{"dtyp":"F32"}}`, nil), "c.safetensors is damaged or not a safetensors file: header byte 13: an unknown or repeated field of a tensor", ""},
			{"field missing", makeSafetensors(`{"w":{"dtype":"F32"}}`, nil), "c.safetensors is damaged or not a safetensors file: header byte 20: a tensor without dtype, shape or proper data_offsets", ""},
			{"negative", makeSafetensors(`{"w":{"dtype":"F32","shape":[-1]`, nil), "c.safetensors is damaged or not a safetensors file: header byte 29: want a non-negative integer", ""},
			{"overflow", makeSafetensors(`{"w":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}}`, nil), "c.safetensors is damaged or not a safetensors file: header byte 73: a tensor whose data_offsets do not fit its shape", ""},
			{"bad escape", makeSafetensors(`{"\ud800":{}}`, nil), "c.safetensors is damaged or not a safetensors file: header byte 8: malformed string", ""},
			{"duplicate", makeSafetensors(`{"w":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"w":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}`, nil), `c.safetensors is damaged: it has two arrays named "w"`, ""},
			{"overlap", makeSafetensors(`{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}}`, make([]byte, 6)), `c.safetensors is damaged: tensor "b" starts at byte 2 of the data, where 4 is due (an overlap)`, ""},
			{"hole", makeSafetensors(`{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[5,9]}}`, make([]byte, 9)), `c.safetensors is damaged: tensor "b" starts at byte 5 of the data, where 4 is due (a hole)`, ""},
			{"weights only", makeSafetensors(`{}`, nil), "c.safetensors holds no training state: it was not written by --save", "to start from its weights, use --init instead of --resume"},
			{"tensor missing", changed(`"w":`, `"v":`), `c.safetensors is a checkpoint of another model: it has no tensor "w" f32[256]`, ""},
			{"other shape", changed(`"shape":[256]`, `"shape":[2,128]`), `c.safetensors is a checkpoint of another model: tensor "w" is f32[2,128] there and f32[256] here`, ""},
			{"other type", changed(`"F32"`, `"I32"`), `c.safetensors is a checkpoint of another model: tensor "w" is i32[256] there and f32[256] here`, ""},
			{"one more", changed(`"w":`, `"more":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"w":`), `c.safetensors is a checkpoint of another model: this one has no tensor "more" u8[0]`, ""},
			{"other hash", changed(`"abab`, `"cdab`), "c.safetensors is a checkpoint of another model: that one's hash is cdabababababab" + "ab, this one's abababababababab", "to start from its weights, use --init instead of --resume"},
			{"no step", changed(`"step":"1"`, `"step":""`), "c.safetensors is damaged: its seed or step number is missing or malformed", ""},
		} {
			t.Run(c.name, func(t *testing.T) {
				p := p.at(t)
				p.write("c.safetensors", c.file)
				p.fails("checkpoint", c.message, c.hint, "--steps", "1", "--resume", "c.safetensors")
			})
		}
		p.fails("checkpoint", "cannot open none: No such file or directory", "look at the path: it is taken from the directory that the program runs in", "--resume", "none")
		p.fails("checkpoint", ". is not a regular file", "", "--resume", ".")
		p.fails("checkpoint", "good.safetensors was saved by a run with seed 1, and --seed is 2", "leave --seed away: a resumed run keeps its seed", "--resume", "good.safetensors", "--seed", "2")
		p.write("c.safetensors", changed(`"w":`, `"v":`))
		p.fails("checkpoint", `c.safetensors is a checkpoint of another model: it has no tensor "w" f32[256]`, "", "--init", "c.safetensors")
	})

	t.Run("every prefix and flipped byte of a checkpoint is handled", func(t *testing.T) {
		p := toy.at(t)
		p.lines("--steps", "1", "--save", "good.safetensors")
		good := p.read("good.safetensors")
		for i := 0; i < 360; i += 3 {
			bad := append([]byte{}, good...)
			bad[i] ^= byte(1 << (i % 8))
			p.write("bad.safetensors", bad)
			require.Contains(t, []int{0, 1}, p.run("--steps", "0", "--resume", "bad.safetensors", "--threads", "1").status)
			p.write("bad.safetensors", good[:i])
			require.Equal(t, 1, p.run("--steps", "0", "--resume", "bad.safetensors", "--threads", "1").status)
		}
	})

	t.Run("disk full on save", func(t *testing.T) {
		p := toy.at(t)
		p.lines("--steps", "1", "--save", "c.safetensors")
		old := p.read("c.safetensors")
		// A limit on the size of files fails like a full disk, in the middle of the write.
		sh := func(args string) result {
			return p.exec(exec.Command("sh", "-c", "ulimit -f 4; exec "+p.path+" "+args)) // 2048 bytes of 2664
		}
		r := sh("--steps 2 --save c.safetensors")
		require.Equal(t, 1, r.status)
		require.Equal(t, "toy: error: cannot write c.safetensors: File too large; the old file is untouched\n  hint: free some space or write elsewhere\n", r.stderr)
		require.Equal(t, old, p.read("c.safetensors"))
		require.Equal(t, []string{"c.safetensors"}, p.files())
		r = sh("--steps 2 --save new.safetensors")
		require.Equal(t, "toy: error: cannot write new.safetensors: File too large; nothing was left behind\n  hint: free some space or write elsewhere\n", r.stderr)
		require.Equal(t, []string{"c.safetensors"}, p.files())
	})

	t.Run("unwritable save is found before training", func(t *testing.T) {
		p := toy.at(t)
		p.fails("io", "cannot write none/c.safetensors: its directory does not exist or may not be written", "", "--steps", "4000000000", "--save", "none/c.safetensors")
		p.fails("io", "cannot write .: Is a directory", "", "--save", ".")
	})

	t.Run("standard output is full", func(t *testing.T) {
		full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
		if err != nil {
			t.Skip("no /dev/full")
		}
		defer full.Close()
		p := toy.at(t)
		cmd := exec.Command(p.path, "--steps", "1")
		cmd.Stdout = full
		require.Error(t, cmd.Run())
		require.Equal(t, 1, cmd.ProcessState.ExitCode())
	})

	t.Run("out of address space", func(t *testing.T) {
		p := toy.at(t)
		for limit, want := range map[string]string{
			"8000":  `cannot reserve 16777216 bytes of memory: Cannot allocate memory\n  hint: lower --budget, or free address space \(ulimit -v\)`,
			"60000": `cannot start thread \d+ of 16: Resource temporarily unavailable\n  hint: use fewer --threads, or raise ulimit -u`,
		} {
			r := p.exec(exec.Command("sh", "-c", "ulimit -v "+limit+"; ulimit -s 8192; exec "+p.path+" --threads 16"))
			require.Equal(t, 1, r.status)
			require.Regexp(t, "^toy: error: "+want+"\n$", r.stderr)
		}
	})
}

// TestMoreMemoryThanThereIs: the error comes before the kernel kills the process.
func TestMoreMemoryThanThereIs(t *testing.T) {
	b := fixture.Builder{Model: *fixture.Train()}
	b.Value(exe.RoleOutput, "huge", dtype.U8, "", 1<<42)
	r := buildProgram(t, b.Done()).run("--steps", "1")
	require.Equal(t, 1, r.status)
	require.Regexp(t, `^toy: error: the arena takes 4398046517760 bytes of memory, \d+ are available\n  hint: compile it with a smaller --budget, or free memory\n$`, r.stderr)
}

func TestNaNLoss(t *testing.T) {
	m := fixture.Train()
	m.Step[1] = fixture.Launch("nan_loss", 1, fixture.W(exe.Arg{Offset: m.Find("loss").Offset, Bytes: 4}))
	exe.PlaceWaits(m.Step)
	ls := buildProgram(t, m).lines("--steps", "1")
	require.Nil(t, ls[0].Loss)
	require.Contains(t, []string{"7fc00000", "ffc00000"}, ls[0].LossBits)
}

// TestUnsupportedCPU: no CPU so far has all of these.
func TestUnsupportedCPU(t *testing.T) {
	m := fixture.Train()
	m.Features = []string{"sse4.2", "sse4a", "amx-int8", "avx512fp16"}
	p := buildProgram(t, m)
	r := p.run("--steps", "1")
	require.Equal(t, 1, r.status)
	require.Regexp(t, `^toy: error: this CPU lacks instructions that the program was compiled for \(cpu:x86-64-v3\): [-a-z0-9 ]+\n  hint: it needs sse4\.2 sse4a amx-int8 avx512fp16; compile it with --target cpu:x86-64-v3, or with --target cpu:native on this machine\n$`, r.stderr)
	require.Equal(t, 0, p.run("--describe").status)
	require.Equal(t, 0, p.run("--help").status)
}

// TestLossTypes: the loss may be of any floating type.
func TestLossTypes(t *testing.T) {
	for d, digits := range map[dtype.Type]int{dtype.F64: 16, dtype.BF16: 4} {
		m := fixture.Train()
		loss := m.Find("loss")
		loss.DType, loss.Bytes = d, d.Size()
		ls := buildProgram(t, m).lines("--steps", "1")
		require.Len(t, ls[0].LossBits, digits)
	}
}
