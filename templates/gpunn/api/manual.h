/* gpunn.h - v0.1 - neural networks for C: train and run them from one header.            MIT or public domain (end of file)
 *
 * Do this:
 *     #define GPUNN_IMPLEMENTATION            in exactly one C or C++ file, before the include
 *     #include "gpunn.h"                      everywhere else just the include
 * and compile it:
 *     cc -O3 -march=native app.c -lm                              (and -lpthread where the C library is older than glibc 2.34)
 *     nvcc -O3 -arch=native app.c gpunn_cuda.cu -o app            (the same program on the GPU, where there is one)
 *
 * >>toc        grep -n '>>' gpunn.h lists every section
 *     doc      what gpunn is and is not, options, step by step, memory, errors, threads, limits
 *     config   version, language check, GPUNN_API, named arguments
 *     status   statuses and their names
 *     device   where work runs
 *     model    models, tensors, parameters
 *     ops      the table of elementwise ops: the single source of each
 *     builders the table of the other ops; layers, reductions, shapes, losses
 *     train    running, optimizers, schedules
 *     group    several processes that train one model
 *     data     loaders
 *     files    weights, checkpoints, dataset readers
 *     spec     models as JSON
 *     fit      the training loop, progress, history
 *     profile  where the time of a run goes
 *     backend  what a backend provides
 *     kernels  fused kernels that the generator writes for a model
 *   and under GPUNN_IMPLEMENTATION the sections below, each using those before it. Each is a file of templates/gpunn, from which
 *   this one is written (python3 -m generator.amalgamate); gpunn_cuda.cu includes those of common/ too.
 *     common/   traits geometry numbers places updates
 *     base/     platform structs forward_declarations errors memory random math tables sizes shapes device model
 *               time json text
 *     ranks/    slices mpi store tcp group
 *     graph/    arguments tensors infer nodes expr differentiate
 *     layers/   basic recurrent random shapes reductions states attention einsum losses formulas
 *     plan/     steps backward plan
 *     run/      run io bind inspect recompute
 *     cpu/      threads levels context elementwise move reduce indexing vectors gemm conv pool sampling norm softmax
 *               loss attention recurrent optimizers cpu
 *     train/    optimizer step ranks schedule loader fit profile
 *     io/       files elements safetensors load checkpoint save spec_writer spec_reader datasets
 *
 * >>doc
 * The tests compile and run all code in this comment. Each piece stands by itself, behind what A PROGRAM declares before its
 * training step.
 *
 * PURPOSE  A model is a graph of tensors built by C calls with PyTorch's names and defaults. The first run plans it: order of
 *     work, gradients, memory. Every later run only computes: no allocation, no lookup. Weights are safetensors files with
 *     PyTorch's names and shapes, so each side reads what the other wrote.
 *
 * A PROGRAM
 *         gpunn_device *dev   = gpunn_device_open(.seed = 1);
 *         gpunn_model  *model = gpunn_model_create(dev);
 *         gpunn_tensor *x     = gpunn_input(model, "x", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 20));
 *         gpunn_tensor *t     = gpunn_input(model, "t", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 1));
 *         gpunn_tensor *h     = gpunn_relu(gpunn_linear(x, "fc1", .out_features = 50));
 *         gpunn_tensor *y     = gpunn_linear(h, "fc2", .out_features = 1);
 *         gpunn_tensor *loss  = gpunn_bce_with_logits(y, t);
 *         gpunn_optimizer *o  = gpunn_sgd(model, .lr = 0.01f);
 *         gpunn_write(x, samples, sizeof samples);
 *         gpunn_write(t, targets, sizeof targets);
 *         if (gpunn_train_step(o, loss) != GPUNN_OK) puts(gpunn_error(dev));
 *
 *     samples and targets are here float[8][20] and float[8]: their bytes tell that the batch is 8. In the end
 *
 *         gpunn_optimizer_destroy(o);
 *         gpunn_model_destroy(model);
 *         gpunn_device_close(dev);
 *
 *     in any order, each once; NULL is fine.
 *
 * gpunn DOES NOT
 *     - trace or run Python, load ONNX, or build graphs whose shape depends on values;
 *     - vary between runs what the shape of a parameter is made of: sizes that vary are those of inputs (SHAPES below);
 *     - exit, abort or keep global state: everything hangs off a gpunn_device; nor print, but for the one line of GPU below;
 *     - share a model or a device between threads without a lock of yours (THREADS below).
 *
 * STEP BY STEP
 *     1. gpunn_device_open                    the machine: a GPU when its companion is linked and there is one, else the CPU
 *     2. gpunn_model_create, gpunn_input      the graph's entrances, with GPUNN_BATCH where the batch goes
 *     3. layers, ops, a loss                  each call checks its shapes at once; NULL in, NULL out
 *     4. gpunn_sgd, gpunn_adam, ...           an optimizer over the model's parameters, or over some of them
 *     5. gpunn_write, gpunn_train_step        or a gpunn_loader, or gpunn_fit for the whole loop
 *     6. gpunn_forward, gpunn_read            evaluation mode: dropout off, running statistics used
 *     7. gpunn_save, gpunn_load               weights; gpunn_checkpoint_save for all that resuming needs
 *
 * BUILDING  The implementation takes some 10 to 25 seconds to compile, so give it a file that never changes, gpunn.c, of two
 *     lines: #define GPUNN_IMPLEMENTATION and #include "gpunn.h". All other files just include the header and compile in no time.
 *         cc -c -O3 -march=native gpunn.c         once
 *         cc -O2 app.c gpunn.o -lm                at every edit
 *     -march=native uses all instructions of this processor, and no other can run it. Without it (nor another -march), optimized
 *     code for x86-64 on Linux and macOS runs on all and chooses among SSE2, AVX2 and AVX-512 as it starts, as fast within some
 *     hundredths; it takes twice as long to compile. GPUNN_VECTORS=sse2, avx2 or avx512 in the environment lets it take no more
 *     than that; none of them takes products of BF16 (PRECISION), bf16 takes those of AVX-512, amx those of AMX where it can.
 *     Options are defined before the include that has GPUNN_IMPLEMENTATION:
 *     GPUNN_STATIC       every function static: a private copy for this file (define it wherever gpunn.h is included), which has
 *                        the ops that the file builds and no others, and takes less time to compile. Otherwise a linker
 *                        leaves them out (-ffunction-sections -fdata-sections -Wl,--gc-sections); gpunn_spec_load needs all
 *     GPUNN_API          your own linkage, such as __declspec(dllexport)
 *     GPUNN_MPI          ranks over MPI (compile with mpicc): RANKS
 *     GPUNN_CBLAS        matrix products by the system's CBLAS (link -lopenblas); Debian's OpenBLAS does not know the newest
 *                        processors: where it is slow, set OPENBLAS_CORETYPE=SKYLAKEX (or HASWELL) in the environment
 *     GPUNN_ZLIB         readers accept .gz files (link -lz)
 *     GPUNN_NO_THREADS   no pthreads: the CPU computes on one thread, and loaders prefetch nothing
 *     GPUNN_CUDA         the reference to gpunn_cuda.cu is strong: needed where it lies in an archive or a shared library, unless
 *                        that is linked with -Wl,-u,gpunn_cuda_backend, and on Windows
 *     GPUNN_NO_SIMD      plain C kernels
 *     GPUNN_NO_IMPLEMENTATION   GPUNN_IMPLEMENTATION is ignored: for linking a file that asks for it with an implementation
 *                        that is compiled already
 *
 * LIBRARY  A shared library, for other languages and for programs that are not compiled anew:
 *         cc -O3 -march=native -shared -fPIC -DGPUNN_IMPLEMENTATION -x c gpunn.h -o libgpunn.so -lm -lpthread
 *     Its ABI is that of GPUNN_VERSION: as long as that stays, structs, enum values and functions keep layout, number and
 *     meaning, and functions are only added. gpunn_version tells which one is linked, and gpunn_device_open refuses programs that
 *     were compiled with another one (args_). What a program calls by a macro, such as gpunn_linear, is for others the function
 *     with "_" behind its name and a struct by value: zeros, but for what is meant. examples/embedding has Python and Fortran.
 *
 * NAMED ARGUMENTS  A field left out, or 0, is torch.nn's default. Where 0 itself is meant, write GPUNN_ZERO. So a flag that is
 *     true in torch.nn by default is here its contrary, with no_ before its name: bias=False is .no_bias = true.
 *         gpunn_tensor *image = gpunn_input(model, "image", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 3, 32, 32));
 *         gpunn_tensor *conv  = gpunn_conv2d(image, "conv1", .out_channels = 6, .kernel_size = 5, .padding = 2);
 *         gpunn_optimizer *plain = gpunn_adam(model, .lr = 1e-3f, .beta1 = GPUNN_ZERO);
 *
 * DEVICES  A device is a GPU or the CPU, with its memory, its random numbers, its threads and its first error. Most programs open
 *     one. gpunn_device_open takes the first GPU that works and otherwise the CPU; .type asks for one of them.
 *         gpunn_device *cpu = gpunn_device_open(.type = GPUNN_DEVICE_CPU, .threads = 2, .memory_limit = (size_t)1 << 30);
 *         if (cpu == NULL) puts(gpunn_error(NULL));
 *         else printf("%s, %d threads\n", gpunn_device_name(cpu), gpunn_device_threads(cpu));
 *         gpunn_device_close(cpu);
 *     gpunn_model_to moves a model with its optimizers to another one, and training goes on as if nothing had happened.
 *
 * TENSORS  All belong to a model, which frees them. An input is written by the program, a parameter is trained and saved, a
 *     buffer (running statistics) is saved, a constant never changes, and a value is what an op makes. Layers make their
 *     parameters themselves, called name.weight, name.bias, ...; gpunn_find finds them by these names.
 *         gpunn_tensor *weight = gpunn_find(model, "fc1.weight");
 *         gpunn_shape   shape  = gpunn_tensor_shape(weight); // {50, 20}, as torch.nn.Linear's
 *         static float  w[50][20];
 *         gpunn_read(weight, w, sizeof w);
 *         w[0][0] = (float)shape.dim[0];
 *         gpunn_write(weight, w, sizeof w);
 *     A parameter of your own, with its initial values:
 *         gpunn_init    normal = {GPUNN_INIT_NORMAL, 0, 0.02f};
 *         gpunn_tensor *offset = gpunn_parameter(model, "offset", GPUNN_SHAPE(20), normal);
 *         gpunn_tensor *moved  = gpunn_add(x, offset);
 *
 * SHAPES  Row-major, rank 0 (a scalar) to 8: images NCHW, volumes NCDHW; sequences as torch's layers have them, [length, n,
 *     features] unless .batch_first. Elementwise ops broadcast as NumPy does. GPUNN_BATCH stands for the batch, which is known
 *     when the inputs are written and may be another one at each run; 4 * GPUNN_BATCH is four times the batch. Reshaping keeps it
 *     apart:
 *         gpunn_tensor *sequence = gpunn_input(model, "s", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 16, 8));
 *         gpunn_tensor *rows     = gpunn_reshape(sequence, GPUNN_SHAPE(16 * GPUNN_BATCH, 8));
 *         gpunn_tensor *swapped  = gpunn_permute(sequence, GPUNN_AXES(1, 0, 2)); // [16, batch, 8]
 *         gpunn_tensor *first    = gpunn_slice(sequence, 1, 0, 4, 1);            // [batch, 4, 8]
 *         gpunn_tensor *means    = gpunn_mean(sequence, GPUNN_AXES(-1), false);  // [batch, 16]
 *
 *     Any other dimension of an input may vary too, under a name. Layers make formulas of it, such as (H - 1) / 2 + 1 where a
 *     convolution has stride 2, and what a program needs itself is written as text:
 *         int64_t       T      = gpunn_size(model, "T", .max = 512);
 *         gpunn_tensor *speech = gpunn_input(model, "speech", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, T, 8));
 *         gpunn_tensor *frames = gpunn_reshape(speech, GPUNN_SHAPE(gpunn_size(model, "batch * T"), 8));
 *         gpunn_tensor *mean   = gpunn_mean(gpunn_linear(speech, "words", .out_features = 4), GPUNN_AXES(1), false);
 *         static float  sound[2 * 30 * 8];
 *         gpunn_write_shape(speech, sound, GPUNN_SHAPE(2, 30, 8)); // bytes tell one dimension, not two
 *         gpunn_tensor *heard[] = {frames, mean};
 *         gpunn_forward(heard, 2);
 *     What holds for all sizes is checked by the builders, the rest when a run first meets them: all inputs of a run must agree.
 *     Where a network halves an image and doubles it again, .multiple tells that both ends meet; or gpunn_interpolate goes to the
 *     size of what it meets (examples/unet.c). Loaders make batches of samples of like length, with .lengths.
 *
 * LAYERS  Functions of tensors, so a network is what you write: a residual block is an addition, two heads are two calls, and a
 *     layer that stands in a loop gets its name from the loop.
 *         gpunn_tensor *z = h;
 *         for (int i = 0; i < 3; i++) {
 *             char name[16];
 *             snprintf(name, sizeof name, "block%d", i);
 *             z = gpunn_add(z, gpunn_silu(gpunn_linear(z, name, .out_features = 50)));
 *         }
 *     A weight that two layers share is made by the first and given to the second:
 *         gpunn_tensor *tied = gpunn_linear(h, "again", .weight = gpunn_find(model, "fc2.weight"), .no_bias = true);
 *     An op that is missing is often a formula, as fast as a built-in one:
 *         gpunn_tensor *quick = gpunn_expr("x * sigmoid(1.702 * x)", &h, 1);
 *         gpunn_tensor *pair[] = {y, t};
 *         gpunn_tensor *focal  = gpunn_expr("p = sigmoid(x); -mean(y * (1 - p) ** 2 * log(p) + (1 - y) * p ** 2 * log(1 - p))",
 *                                           pair, 2);
 *
 * IMAGES  [n, channels, height, width]. Each layer tells its result's shape, so the step from images to rows is a flatten, whose
 *     features the next layer finds by itself; a network that takes one size only by its last layer takes any with a mean.
 *         gpunn_tensor *picture = gpunn_input(model, "picture", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 3, 32, 32));
 *         gpunn_tensor *c1 = gpunn_conv2d(picture, "c1", .out_channels = 16, .kernel_size = 3, .padding = 1, .no_bias = true);
 *         c1 = gpunn_relu(gpunn_batch_norm2d(c1, "bn1"));
 *         c1 = gpunn_max_pool2d(c1, .kernel_size = 2);                                    // [batch, 16, 16, 16]
 *         gpunn_tensor *c2 = gpunn_conv2d(c1, "c2", .out_channels = 16, .kernel_size = 3, .padding = 1);
 *         c2 = gpunn_relu(gpunn_add(c2, c1));                                             // a residual block
 *         gpunn_tensor *flat   = gpunn_flatten(c2);                                       // [batch, 4096]
 *         gpunn_tensor *pooled = gpunn_mean(c2, GPUNN_AXES(2, 3), false);                 // [batch, 16]
 *         gpunn_tensor *classes = gpunn_linear(gpunn_dropout(pooled, 0.2f), "classes", .out_features = 10);
 *         gpunn_tensor *finer  = gpunn_interpolate(c2, .scale_factor = 2, .mode = GPUNN_INTERPOLATE_LINEAR);
 *         gpunn_tensor *mirrored = gpunn_flip(finer, GPUNN_AXES(3));
 *         gpunn_tensor *squares  = gpunn_pixel_unshuffle(mirrored, 2);                    // [batch, 64, 16, 16]
 *         gpunn_tensor *contrast = gpunn_std(squares, GPUNN_AXES(2, 3), 1, false);        // [batch, 64]
 *     Stored as U8, pictures become F32 where the network starts: gpunn_expr("(x / 255 - 0.45) / 0.22", ...) of a gpunn_cast.
 *
 * SEQUENCES  Words are integers, an embedding makes them rows; recurrent layers read [length, n, features], or with .batch_first
 *     [n, length, features]. Where samples of a batch are of different lengths, .lengths stops each at its own.
 *         gpunn_tensor *words   = gpunn_input(model, "words", GPUNN_I64, GPUNN_SHAPE(GPUNN_BATCH, 12));
 *         gpunn_tensor *lengths = gpunn_input(model, "lengths", GPUNN_I64, GPUNN_SHAPE(GPUNN_BATCH));
 *         gpunn_tensor *vectors = gpunn_embedding(words, "embedding", .num_embeddings = 1000, .embedding_dim = 16);
 *         gpunn_tensor *h_n     = NULL; // [layers * directions, batch, hidden]: the state behind each sample's last word
 *         gpunn_tensor *steps   = gpunn_lstm(vectors, "lstm", .hidden_size = 24, .num_layers = 2, .batch_first = true,
 *                                            .lengths = lengths, .h_n = &h_n);            // [batch, 12, 24]
 *         gpunn_tensor *next    = gpunn_linear(steps, "next", .out_features = 1000);      // of each step
 *         gpunn_tensor *targets_of_words = gpunn_input(model, "following", GPUNN_I64, GPUNN_SHAPE(GPUNN_BATCH, 12));
 *         gpunn_tensor *by_class = gpunn_permute(next, GPUNN_AXES(0, 2, 1));              // classes stand at axis 1
 *         gpunn_tensor *words_loss = gpunn_cross_entropy(by_class, targets_of_words, .ignore_index = -100);
 *         gpunn_tensor *told = gpunn_sequence_mask(lengths, 12); // [batch, 12], 1 before each sample's end
 *     -100, the default of .ignore_index, marks what is behind the end of a sample and counts for nothing.
 *
 * ATTENTION  gpunn_scaled_dot_product_attention is torch's function, gpunn_multi_head_attention and the transformer layers are
 *     torch.nn's with their parameters' names, so that their weights load.
 *         gpunn_tensor *tokens = gpunn_input(model, "tokens", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 12, 32));
 *         gpunn_tensor *encoded = gpunn_transformer_encoder(tokens, "encoder", .nhead = 4, .dim_feedforward = 64,
 *                                                           .num_layers = 2, .batch_first = true, .gelu = true);
 *         gpunn_tensor *qkv    = gpunn_linear(encoded, "qkv", .out_features = 96);
 *         gpunn_tensor *causal = gpunn_scaled_dot_product_attention(
 *             gpunn_reshape(qkv, GPUNN_SHAPE(GPUNN_BATCH, 12, 3, 4, 8)), NULL, NULL, .is_causal = true);
 *         gpunn_tensor *joined = gpunn_reshape(causal, GPUNN_SHAPE(GPUNN_BATCH, 12, 32));
 *     Positions come in by an embedding that is added to the tokens, or, as in Llama, by turning queries and keys:
 *         gpunn_tensor *query  = gpunn_input(model, "query", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 12, 4, 8)); // [n, l, heads, e]
 *         gpunn_tensor *places = gpunn_input(model, "places", GPUNN_I64, GPUNN_SHAPE(12)); // 0 to 11, or further
 *         gpunn_tensor *turned = gpunn_rotary_embedding(query, places, .theta = 10000, .heads_last = true);
 *     A mask is a bool tensor, true where a key takes part, or F32, added to the scores; in torch.nn's layers, as there, true is
 *     what is left out. examples/gpt2.c and examples/bert_qa.c are whole models with weights from Hugging Face.
 *
 * STATES  What one run leaves for the next: a cache of keys and values, a recurrent layer's h and c, a counter. A state is read
 *     as any tensor is, and is its initial value at first; gpunn_assign gives it a new one, gpunn_assign_at a new part.
 *         gpunn_tensor *row    = gpunn_input(model, "row", GPUNN_F32, GPUNN_SHAPE(1, GPUNN_BATCH, 1, 16)); // [n, rows, heads, e]
 *         gpunn_tensor *place  = gpunn_input(model, "place", GPUNN_I64, GPUNN_SHAPE(0));  // where these rows go
 *         gpunn_tensor *filled = gpunn_input(model, "filled", GPUNN_I64, GPUNN_SHAPE(0)); // place + rows
 *         gpunn_init    none   = {GPUNN_INIT_ZEROS, 0, 0};
 *         gpunn_tensor *keys   = gpunn_state(model, "keys", GPUNN_SHAPE(1, 64, 1, 16), none); // of a capacity of 64
 *         gpunn_tensor *now    = gpunn_assign_at(keys, 1, place, row);
 *         gpunn_tensor *seen   = gpunn_scaled_dot_product_attention(row, now, now, .heads_last = true, .is_causal = true,
 *                                                                   .lengths = filled);
 *     An assignment gives the state as it is from then on, so attention sees the new rows; the name of the state itself, keys, is
 *     what it was when the run began. All that reads that old value runs before; where it cannot, because it needs the new one
 *     too, the run is GPUNN_ERR_STATE. An assignment takes place in a run that reads its result, or that reads the state and all
 *     inputs that the assignment needs; one whose result nobody reads comes at the end. So two ways into a state, say for a whole
 *     prompt and for one word, are two assignments, and each run makes its own. Training steps make only those with .in_training,
 *     behind the backward pass, through which no gradient goes on to the run before. gpunn_write and gpunn_read give and take a
 *     state's value, gpunn_reset_states the initial ones of all; gpunn_set_saved puts one into files. Specs tell states and
 *     assignments, but not what a state has become.
 *     Several texts at once take turns with one model, each with states of its own:
 *         gpunn_init     zero = {GPUNN_INIT_ZEROS, 0, 0};
 *         gpunn_tensor  *visits = gpunn_state(model, "visits", GPUNN_SHAPE(1), zero);
 *         gpunn_tensor  *counted = gpunn_assign(visits, gpunn_add_scalar(visits, 1));
 *         gpunn_session *other = gpunn_session_create(model);
 *         gpunn_use_session(model, other); // from here on the states are its
 *         gpunn_forward(&counted, 1);
 *         gpunn_use_session(model, NULL);  // and the model's own again
 *         gpunn_session_destroy(other);
 *     A text needs no reading while it is written: the token that gpunn_sample draws is assigned to a state from which the next
 *     run starts, and to its place in another one, to be read at the end.
 *         gpunn_init    empty  = {GPUNN_INIT_ZEROS, 0, 0};
 *         gpunn_tensor *token  = gpunn_state(model, "token", GPUNN_SHAPE(1), empty); // states are F32, exact up to 2^24
 *         gpunn_tensor *count  = gpunn_state(model, "count", GPUNN_SHAPE(1), empty);
 *         gpunn_tensor *text   = gpunn_state(model, "text", GPUNN_SHAPE(100), empty);
 *         gpunn_tensor *draws  = gpunn_input(model, "draws", GPUNN_F32, GPUNN_SHAPE(100)); // from 0 to below 1, all at once
 *         gpunn_tensor *scores = gpunn_embedding(gpunn_cast(token, GPUNN_I64), "bigrams", .num_embeddings = 50,
 *                                                .embedding_dim = 50);
 *         gpunn_tensor *at     = gpunn_cast(count, GPUNN_I64);
 *         gpunn_tensor *drawn  = gpunn_sample(scores, gpunn_index_select(draws, 0, at), .temperature = 0.8f, .top_k = 40);
 *         gpunn_tensor *said   = gpunn_assign_at(text, 0, gpunn_reshape(at, GPUNN_SHAPE(0)), gpunn_cast(drawn, GPUNN_F32));
 *         gpunn_assign(token, gpunn_cast(drawn, GPUNN_F32)); // both take place whenever `said` is computed
 *         gpunn_assign(count, gpunn_add_scalar(count, 1));
 *     Recurrent layers go on by themselves with .stateful: a sentence comes piece by piece, and gpunn_reset_states begins
 *     another.
 *         gpunn_tensor *piece  = gpunn_input(model, "piece", GPUNN_F32, GPUNN_SHAPE(5, 1, 16)); // [length, n, features]
 *         gpunn_tensor *stream = gpunn_gru(piece, "stream", .hidden_size = 24, .stateful = true);
 *     examples/gpt2.c writes text with a cache, examples/char_lstm.c with such layers.
 *
 * OPS OF YOUR OWN  A formula (LAYERS) needs nothing else. An op in C, and if it shall run on a GPU in CUDA, is a gpunn_custom_op:
 *     two functions that read and write plain arrays. It takes part in shapes, gradients, plans and files like any other;
 *     register it (gpunn_register_custom) where specs shall find it. examples/custom_op.c has the whole, with the CUDA side.
 *         // static int swish(const gpunn_custom_call *c): c->in[0].data to c->out->data, c->out->count numbers; return 0
 *         gpunn_custom_op op = {.name = "swish", .inputs = 1, .forward = swish};
 *         gpunn_tensor   *own = gpunn_custom(&op, &h, .numbers = {1.702f});
 *         gpunn_forward(&own, 1);
 *
 * LOSSES  Any scalar can be trained: one of the losses, a sum of several with weights, or a formula that ends in gpunn_mean.
 *     Their names are those of torch.nn.functional, where some end in _loss and some do not; bce is its binary_cross_entropy.
 *         gpunn_tensor *sparse = gpunn_mean(gpunn_abs(h), GPUNN_ALL, false);
 *         gpunn_tensor *total  = gpunn_add(loss, gpunn_mul_scalar(sparse, 1e-3f));
 *         gpunn_train_step(o, total);
 *         printf("%g\n", gpunn_item(total));
 *     Classes are integers, as in PyTorch: cross_entropy takes logits and labels, not probabilities.
 *         gpunn_tensor *labels = gpunn_input(model, "labels", GPUNN_I64, GPUNN_SHAPE(GPUNN_BATCH));
 *         gpunn_tensor *logits = gpunn_linear(h, "head", .out_features = 10);
 *         gpunn_tensor *nll    = gpunn_cross_entropy(logits, labels, .label_smoothing = 0.1f);
 *         gpunn_tensor *share  = gpunn_accuracy(logits, labels);
 *
 * TRAINING  gpunn_train_step is zero_grad, forward, backward, clipping and update in one; on a GPU one launch. Where the loss
 *     or a gradient is not finite, nothing changes, GPUNN_ERR_NUMERIC. What a step shall do beside is set on the optimizer:
 *         gpunn_set_clip_norm(o, 1);
 *         gpunn_set_skip_nan(o, true); // such a step is skipped instead, and counted: gpunn_loss_scale(o, &skipped)
 *         gpunn_set_schedule(o, .type = GPUNN_SCHEDULE_LINEAR, .warmup_steps = 100, .total_steps = 1000);
 *         gpunn_set_ema(o, 0.999f); // averages of the weights, exchanged with these by gpunn_ema_swap
 *         for (int step = 0; step < 3; step++) {
 *             gpunn_train_step(o, loss);
 *             gpunn_schedule_step(o, 0);
 *         }
 *     One update of several batches that do not fit memory together, by the mean of their gradients:
 *         for (int part = 0; part < 8; part++) gpunn_train_step(o, loss, .accumulate = 8); // the eighth call updates
 *     The same in parts, to look at gradients, or to change them; they add up over calls:
 *         float         norm = 0;
 *         static float  gradient[1][50];
 *         gpunn_zero_grad(model);
 *         for (int part = 0; part < 4; part++) {
 *             gpunn_write(x, samples, sizeof samples);
 *             gpunn_backward(loss);
 *         }
 *         gpunn_clip_grad_norm(model, 4, &norm);
 *         gpunn_read_grad(gpunn_find(model, "fc2.weight"), gradient, sizeof gradient);
 *         gpunn_optimizer_step(o);
 *     Several losses of one forward pass, to look at each one's gradients, or to weigh them against each other:
 *         gpunn_tensor *energy = gpunn_mean(gpunn_square(h), GPUNN_ALL, false);
 *         static float  of_loss[50][20], of_energy[50][20];
 *         gpunn_zero_grad(model);
 *         gpunn_backward(loss, .then = {energy});  // both losses, and the gradients of the first
 *         gpunn_read_grad(gpunn_find(model, "fc1.weight"), of_loss, sizeof of_loss);
 *         gpunn_zero_grad(model);                  // or not, and they add up
 *         gpunn_backward(energy, .retained = true); // those of the second, from what that forward pass has left
 *         gpunn_read_grad(gpunn_find(model, "fc1.weight"), of_energy, sizeof of_energy);
 *     Fine-tuning: load what fits, freeze what shall stay, give the new head a rate of its own.
 *         for (int i = 0; i < gpunn_parameter_count(model); i++)
 *             if (strncmp(gpunn_tensor_name(gpunn_parameter_at(model, i)), "fc1.", 4) == 0)
 *                 gpunn_set_trainable(gpunn_parameter_at(model, i), false);
 *         gpunn_set_lr_scale(gpunn_find(model, "fc2.weight"), 10);
 *         gpunn_set_decay(gpunn_find(model, "fc2.bias"), false);
 *
 *     Parts of a model that are trained against each other, as in a GAN, have an optimizer each, told by names or by a list:
 *         gpunn_model     *gan = gpunn_model_create(dev);
 *         gpunn_tensor    *noise = gpunn_input(gan, "noise", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 20));
 *         gpunn_tensor    *made = gpunn_linear(noise, "maker.fc", .out_features = 20);
 *         gpunn_tensor    *score = gpunn_linear(made, "judge.fc", .out_features = 1);
 *         gpunn_tensor    *losses[] = {gpunn_mean(gpunn_neg(score), GPUNN_ALL, false), gpunn_mean(score, GPUNN_ALL, false)};
 *         gpunn_optimizer *turns[] = {gpunn_adam(gan, .prefix = "maker."), gpunn_adam(gan, .prefix = "judge.")};
 *         for (int turn = 0; turn < 4; turn++) {
 *             gpunn_write(noise, samples, sizeof samples);
 *             gpunn_train_step(turns[turn % 2], losses[turn % 2]);
 *         }
 *         gpunn_optimizer_destroy(turns[0]);
 *         gpunn_optimizer_destroy(turns[1]);
 *         gpunn_model_destroy(gan);
 *
 * RANDOM NUMBERS  gpunn_rand and gpunn_randn are layers that draw new numbers in every run, of evaluation too, on the device:
 *         gpunn_tensor *mean_of_h = gpunn_linear(h, "mean", .out_features = 8);
 *         gpunn_tensor *spread = gpunn_linear(h, "spread", .out_features = 8);
 *         gpunn_tensor *code  = gpunn_add(mean_of_h, gpunn_mul(gpunn_exp(spread), gpunn_randn_like(spread))); // of a VAE
 *         gpunn_tensor *noise_of_x = gpunn_mul_scalar(gpunn_rand(model, GPUNN_SHAPE(GPUNN_BATCH, 20)), 0.1f);
 *     The same seed gives the same numbers at the same step, on every device but for a normal number's last bits. What is
 *     evaluated between two steps changes nothing of what the next one draws.
 *
 * EVALUATION  gpunn_forward computes just what the outputs need, without dropout, batch_norm with its running statistics. Only
 *     the inputs that they need must have been written; the batch may be another one.
 *         gpunn_tensor *probability = gpunn_sigmoid(y), *outputs[] = {probability, h};
 *         float         p[3], hidden[3][50];
 *         gpunn_write(x, samples, 3 * sizeof samples[0]);
 *         gpunn_forward(outputs, 2);
 *         gpunn_read(probability, p, sizeof p);
 *         gpunn_read(h, hidden, sizeof hidden);
 *     gpunn_forward_training is the same with dropout, anew in each call, and running statistics that move.
 *     In a game or a control loop that is all there is in a frame: after the first call nothing is allocated. gpunn_keep keeps a
 *     value between readable after every run, gpunn_retain_grad its gradient. How an output depends on the inputs, for a saliency
 *     map or an adversarial example, without a trace in the training that goes on:
 *         static float slopes[8][20];
 *         gpunn_retain_grad(x);
 *         gpunn_backward(gpunn_sum(y, GPUNN_ALL, false), .mode = GPUNN_MODE_EVALUATION, .inputs_only = true);
 *         gpunn_read_grad(x, slopes, sizeof slopes);
 *
 * DERIVATIVES  gpunn_grad gives a gradient as a tensor like any other: it stands in a loss, is trained through, differentiated
 *     again. A network that solves u'' + u = 0 with u(0) = 0 and u'(0) = 1, from its residual alone (examples/pinn.c solves
 *     Burgers' equation):
 *         gpunn_model     *ode = gpunn_model_create(dev);
 *         gpunn_tensor    *time = gpunn_input(ode, "time", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 1));
 *         gpunn_tensor    *bent = gpunn_tanh(gpunn_linear(time, "0", .out_features = 16));
 *         gpunn_tensor    *free_part = gpunn_linear(bent, "1", .out_features = 1);
 *         gpunn_tensor    *u = gpunn_add(time, gpunn_mul(gpunn_square(time), free_part)); // u(0) = 0, u'(0) = 1
 *         gpunn_tensor    *u_t = gpunn_grad(u, time), *u_tt = gpunn_grad(u_t, time);
 *         gpunn_tensor    *residual = gpunn_mean(gpunn_square(gpunn_add(u_tt, u)), GPUNN_ALL, false);
 *         gpunn_optimizer *solver = gpunn_adam(ode);
 *         gpunn_write(time, targets, sizeof targets);
 *         gpunn_train_step(solver, residual);
 *         gpunn_optimizer_destroy(solver);
 *         gpunn_model_destroy(ode);
 *     The batch is a sum: where sample i of y depends on sample i of x alone, as here, gpunn_grad(y, x) is each sample's own
 *     derivative. It goes backward, from one number of a sample to all inputs; gpunn_jvp goes forward, from one direction to all
 *     outputs. They nest in any order. gpunn_hvp is forward over backward, and gpunn_laplacian takes as many products as y itself
 *     takes, once more for y's gradient, and once more for each coordinate. Of a network of place and time:
 *         gpunn_model  *heat = gpunn_model_create(dev);
 *         gpunn_tensor *xyt = gpunn_input(heat, "xyt", GPUNN_F32, GPUNN_SHAPE(GPUNN_BATCH, 3)), *du;
 *         gpunn_tensor *warm = gpunn_tanh(gpunn_linear(xyt, "0", .out_features = 16));
 *         gpunn_tensor *temperature = gpunn_linear(warm, "1", .out_features = 1);
 *         gpunn_tensor *u_xx_yy = gpunn_laplacian(temperature, xyt, .coordinates = 2, .gradient = &du);
 *         gpunn_tensor *left = gpunn_sub(gpunn_slice(du, 1, 2, 3, 1), u_xx_yy); // u_t - u_xx - u_yy
 *         gpunn_model_destroy(heat);
 *
 * DATA  A loader takes samples that lie in memory, or a function that makes them, and writes shuffled batches into the inputs;
 *     with .workers they are made by other threads while the device computes. U8 images become F32 on the way, and look different
 *     in each epoch with .crop_padding, .degrees, .horizontal_flip, .vertical_flip, .brightness, .contrast, .saturation and .hue
 *     of their field; .mixup_alpha of the loader mixes samples and their labels.
 *         gpunn_loader *loader = gpunn_loader_create(model, .fields = {{.input = x, .samples = samples},
 *                                                               {.input = t, .samples = targets}},
 *                                                    .count = 8, .batch_size = 4, .shuffle = true);
 *         for (int epoch = 0; epoch < 2; epoch++)
 *             while (gpunn_next(loader)) gpunn_train_step(o, loss);
 *         gpunn_loader_destroy(loader);
 *     Readers for IDX (MNIST), CIFAR, .npy and safetensors fill a gpunn_array: gpunn_read_idx and those that follow it.
 *
 * FIT  The whole loop, where it is the usual one: epochs, validation, the best weights, curves, checkpoints, early stopping.
 *         gpunn_loader *train = gpunn_loader_create(model, .fields = {{.input = x, .samples = samples},
 *                                                              {.input = t, .samples = targets}},
 *                                                   .count = 8, .batch_size = 4, .shuffle = true);
 *         gpunn_fit(o, .loss = loss, .metric = gpunn_binary_accuracy(gpunn_sigmoid(y), t), .train = train, .epochs = 2,
 *                   .patience = 5, .checkpoint = "fit.ckpt", .best_weights = "best.safetensors", .history_svg = "curves.svg");
 *         gpunn_loader_destroy(train);
 *     .metrics takes further scalars, such as gpunn_top_k_accuracy, for .on_progress; .on_epoch_begin and .on_batch_begin are
 *     called before the work, .accumulate makes one update of several batches. What no mean over batches tells, a confusion
 *     matrix, F1 and the area under the ROC curve, is gpunn_evaluate_classes's; weights of classes are cross_entropy's .weight.
 *
 * RANKS  Several processes train one model together, each with its part of every batch: by mpirun -n 4 ./app or srun, when the
 *     file of GPUNN_IMPLEMENTATION is compiled with mpicc -DGPUNN_MPI; without MPI by torchrun, mpirun or srun, where GPUNN_STORE
 *     names an empty folder that all see or rank 0's tcp://host:port, for which torch's MASTER_ADDR and MASTER_PORT do too. Alone
 *     the same program is a group of one.
 *         gpunn_group  *group = gpunn_group_open(dev);
 *         gpunn_loader *part = gpunn_loader_create(model, .fields = {{.input = x, .samples = samples},
 *                                                                    {.input = t, .samples = targets}},
 *                                                  .count = 8, .batch_size = 4, .shuffle = true, .group = group);
 *         gpunn_distribute(o, group);
 *         gpunn_fit(o, .loss = loss, .train = part, .epochs = 2, .on_progress = gpunn_progress_bar); // rank 0 reports
 *         gpunn_loader_destroy(part);
 *         gpunn_distribute(o, NULL);
 *         gpunn_group_close(group);
 *     All is as on one device with the batches of all ranks as one, within rounding: batch_size is each rank's, gradients and
 *     losses are means over ranks, and so clipping is. Not so dropout, and batch_norm without .sync = true, which takes the
 *     statistics of each rank's own part. The same seed on every rank gives the same run again, to the bit. What is common to all
 *     ranks (gpunn_train_step, gpunn_fit, checkpoints; >>group) is called by all of them; what only one does, printing say,
 *     stands behind gpunn_group_rank(group) == 0. gpunn_backward, gpunn_clip_grad_norm and gpunn_read_grad are of this rank alone
 *     until gpunn_optimizer_step, except that with .sync all training runs are common. A group fails as a whole: when a rank is
 *     missing for .timeout seconds, the others' calls give GPUNN_ERR_DEVICE and name it; end the program then and start it again
 *     with gpunn_checkpoint_load, also on another number of ranks. gpunn_group_open(dev, .shard = true) leaves each rank its
 *     share of the optimizers' states and averages (ZeRO-1), with the same results within rounding, and .bf16_gradients = true
 *     has gradients travel in half the bytes. Each rank of a machine has its own GPU with gpunn_device_open(.index =
 *     GPUNN_LOCAL_RANK); two on one are refused. Ranks that may use the same processors, as mpirun and srun bind them or not,
 *     share these: from gpunn_group_open on a CPU device has processors / ranks threads, and 1 at least, unless .threads or
 *     OMP_NUM_THREADS tells how many. torchrun tells 1 where the user does not: set OMP_NUM_THREADS there. Between GPUs NCCL
 *     carries what they exchange (libnccl.so.2, opened as cuDNN is; GPUNN_NCCL_PATH; with NCCL_GRAPH_REGISTER=0 where that is
 *     not set), as part of the step's graph, gradients while backward makes the next ones; without it that goes through the
 *     host's memory, which log_fn hears. Where some ranks have CPUs and some GPUs, or CPUs of other instruction sets, which round
 *     in other ways, each update ends with rank 0's parameters going to all.
 *
 * FILES  gpunn_save writes all parameters and buffers as safetensors, as torch's state_dict would have them. gpunn_load takes all
 *     or nothing; .partial takes what fits and reports the rest. A checkpoint holds all that resuming needs, to the bit.
 *         gpunn_save(model, "w.safetensors");
 *         gpunn_load(model, "w.safetensors", .partial = true);
 *         gpunn_checkpoint_save(o, NULL, "run.ckpt");
 *         gpunn_checkpoint_load(o, NULL, "run.ckpt");
 *     In Python: safetensors.torch.save_file(net.state_dict(), "w.safetensors"), and load_file back. Weights that lie in several
 *     files are loaded by their index: gpunn_load(model, "model.safetensors.index.json").
 *     Names that differ are renamed on the way:
 *         gpunn_rename map[] = {{"module.*", "*"}, {"*.gamma", "*.weight"}, {NULL, NULL}};
 *         gpunn_load(model, "w.safetensors", .map = map);
 *     Files need not be files: gpunn_save_memory, gpunn_load_memory and gpunn_spec_load_memory work on bytes, and a gpunn_io has
 *     functions of yours open and read them, from a pak file for example: gpunn_load(model, "net/weights", .io = &pak).
 *         gpunn_array bytes;
 *         gpunn_save_memory(model, &bytes);
 *         gpunn_load_memory(model, bytes.data, bytes.bytes);
 *         gpunn_array_free(dev, &bytes);
 *
 * MODELS AS JSON  A spec is the model without its weights, for the generator, for other programs, and for models that come from
 *     PyTorch (python3 -m generator.export_torch): generator/model.schema.json describes it.
 *         gpunn_spec_save(model, "net.json", .loss = loss, .optimizer = o);
 *         gpunn_model  *again = gpunn_spec_load(dev, "net.json");
 *         gpunn_tensor *input = gpunn_find(again, "x"), *first = gpunn_spec_output(again, 0);
 *         gpunn_model_destroy(again);
 *     Where the batch stands in a shape, it says "N" or "4N"; other sizes that vary are names of "sizes": {"T": {"max": 512}} and
 *     stand there in formulas, "2 * T - 1".
 *
 * FUSED KERNELS  python3 -m generator net.json -o net writes net_kernels.h and net_kernels.cu: what stands between this model's
 *     products and convolutions as a few kernels, forward and backward. #define NET_KERNELS_IMPLEMENTATION, include the header,
 *     and call gpunn_use_kernels(model, &net_kernels) once the model is built. When the model has changed, they are left out and
 *     log_fn hears the command that renews them. They serve all sizes of a model whose sizes vary; --report tells what such sizes
 *     keep apart. The evaluation of a small network is one kernel: linear layers of at most 256 features with what stands between
 *     them, sample by sample; --report tells why where it is not. On a GPU that is one launch, for batches of which it should be
 *     quicker than step by step: all values of 16 to 64 samples lie in a block's shared memory, and in models of BF16, F16 and
 *     TF32 the products are those of tensor cores (mma.sync). --report has that time. A GPU's kernel is for models of its spec's
 *     precision. An F32 network of images is one launch there too, and on CPUs none, where a block has room for all values of a
 *     sample, as of a LeNet: convolutions, pools and batch norms with what stands between them, for few samples at a time. There
 *     a training step is two, one from the batch to the loss and all gradients, whose sums have a fixed order, and the
 *     optimizer's update: of linear layers of at most 256 features, norms, softmax, elementwise ops, dropout, copies, embeddings
 *     and encodings, with a loss that is a sum or mean of such values or tells classes apart. Sums of many weights take a third
 *     launch, gradients of embeddings' and hash grids' tables three. --report tells where step by step should be quicker.
 *
 * PRECISION  Of a model: gpunn_model_create(dev, .precision = GPUNN_PRECISION_BF16). Parameters, gradients, statistics, sums and
 *     losses stay F32, and so is all that the program reads and writes. On the CPU everything does; where the processor has
 *     AVX-512 BF16, linear layers and gpunn_matmul of a BF16 model round what they multiply and take half the time, except
 *     products of few rows with weights of 32 bits, which gain nothing, and those within a generated kernel, which are F32. A
 *     model for evaluation, .inference = true, keeps the weights of its products and embeddings in these 16 bits alone, rounded
 *     as they are written or loaded; on the CPU those of linear layers and embeddings. On a GPU its values between layers have
 *     16 bits, too: neither an F32 input nor an embedding makes what it is added to F32, as after torch's net.half().
 *
 * MEMORY  Parameters, gradients and optimizer state are flat buffers; everything between them lives in one arena whose offsets
 *     are planned by lifetime, so a value is overwritten as soon as nobody needs it. gpunn_read works for the outputs of the
 *     last gpunn_forward, the loss of the last training step and whatever gpunn_keep names. gpunn_model_summary tells the exact
 *     bytes before anything is allocated. After the first run of each (outputs, mode, sizes) nothing is allocated; 32 such plans
 *     are kept, or as many as gpunn_set_plan_limit tells, and the least recently used one goes.
 *         size_t bytes = 0;
 *         gpunn_model_summary(model, .batch_size = 256, .loss = loss, .bytes = &bytes);
 *         printf("a training step of 256 samples holds %zu bytes\n", bytes);
 *     A model that is only evaluated holds less: gpunn_model_create(dev, .inference = true), and its weights half of that in 16
 *     bits (see PRECISION), which a CPU also reads faster: one at a time, tokens of a language model. Training holds less where
 *     it computes the inside of a block again when the backward pass gets there, for up to a third more time:
 *         gpunn_tensor *deep = h;
 *         for (int i = 0; i < 4; i++) {
 *             char          name[16];
 *             gpunn_tensor *first = deep;
 *             snprintf(name, sizeof name, "deep%d", i);
 *             deep = gpunn_add(deep, gpunn_silu(gpunn_linear(gpunn_tanh(deep), name, .out_features = 50)));
 *             gpunn_recompute(first, deep);
 *         }
 *     Or tell how many bytes there are, and blocks are chosen:
 *         gpunn_recompute_within(loss, 256, (size_t)1 << 30);
 *     .realloc_fn gives the host's memory, .memory_limit bounds the device's, gpunn_empty_cache gives back what runs hold.
 *
 * ERRORS  The first failure on a device wins and stays readable by gpunn_error(dev) and gpunn_last_status(dev) until
 *     gpunn_clear_error(dev). Builders return NULL and pass NULL on, so a chain is checked once at its end. After a failed call
 *     the object is as it was before. Where a training run fails on its values, such as a label out of range or a loss that is
 *     not finite, dropout draws anew in the next one. Failures without a device (gpunn_device_open itself) are kept per thread:
 *     gpunn_error(NULL).
 *         gpunn_tensor *wrong = gpunn_relu(gpunn_add(gpunn_linear(x, "fc3", .out_features = 7), h));
 *         if (wrong == NULL) puts(gpunn_error(dev)); // add: shapes [batch, 7] and [batch, 50] do not broadcast ...
 *         gpunn_clear_error(dev);
 *     What does not stop a run but should be known (a GPU that is not used, kernels that do not fit) goes to .log_fn.
 *
 * THREADS  One device, with its models, optimizers and loaders, belongs to one thread at a time. Different devices are
 *     independent. A loader's own worker threads touch only its buffers. A device's CPU work is shared among .threads threads,
 *     the caller's and others of ours that start with the first work for them and end with the device; results do not depend on
 *     their number. They wait some tens of microseconds for more work, then sleep. gpunn_parallel lends them to an op of your
 *     own. On Linux they run where the thread that starts them may (sched_setaffinity). gpunn_empty_cache ends them until there
 *     is work again. After a fork the child may go on with a CPU device: it starts threads of its own, loaders too. A CUDA
 *     context does not survive a fork: there every call but those that close and destroy gives GPUNN_ERR_DEVICE.
 *     .parallel_fn has a pool of the program's do their work, and none of ours are started. Its whole contract:
 *         // #pragma omp parallel for num_threads(count)
 *         // for (int i = 0; i < count; i++) run(arg);
 *     Each call of run does what share is left of the work when it comes, or nothing. So a pool may be busy, have fewer threads
 *     or be called from several devices at once: calls may come late or one after another, which costs time and never blocks.
 *     They may not be left out, nor come after parallel_fn has returned. Results are those of our own threads, to the bit.
 *     Loaders' workers are threads of ours in any case. No signal is caught: where a file's size is limited or a pipe's reader
 *     may go, ignore SIGXFSZ and SIGPIPE, and saving fails with GPUNN_ERR_IO instead of ending the program.
 *
 * GPU  gpunn_cuda.cu on the compile line, and nothing else in the program, makes gpunn_device_open use a GPU; log_fn hears why
 *     when there is none, and gpunn_device_report tells all that was found. From its second run on, a training step or a
 *     gpunn_forward is one launch of a CUDA graph, and calls return before the work is done: reading a value waits,
 *     gpunn_synchronize does too. A loss or gradient that is not finite changes nothing but may be reported only by a
 *     later call, gpunn_synchronize at the latest. gpunn_write copies at once, so the next batch travels while a step runs.
 *     Precision is the model's: gpunn_model_create(dev, .precision = GPUNN_PRECISION_BF16). gpunn_model_to moves a model with
 *     its optimizers. A fault of the device is final for it: every later call gives the same status; close it. GPUNN_PLAIN=1 in
 *     the environment makes its sentence name op and layer, which a report of it needs: each step is waited for then, which is
 *     slow. From an archive (libgpunn.a) linkers do not take it by themselves: see GPUNN_CUDA. Where that is forgotten and
 *     there is an NVIDIA driver, log_fn hears it as a warning, so give the device one; gpunn_device_name tells what computes,
 *     too.
 *
 * IN A CUDA PROGRAM  gpunn_device_open(.stream = s) puts all work in the order of the program's own stream: what it launched
 *     before is seen, what it launches next sees the results, and nobody waits but gpunn_read, gpunn_item and gpunn_synchronize,
 *     which bring something to the host, the first runs of each kind, and closing. The current CUDA device and a pending CUDA
 *     error are after every call what they were before; an error is lost only where a CUDA call of ours fails, CUDA keeping but
 *     one, or where functions of a gpunn_custom_op or of the generator's kernels are launched, which ask for it.
 *     .cuda_malloc_fn and .cuda_free_fn give the GPU's memory.
 *     gpunn_bind makes memory of the program the memory of an input, a parameter or a value, gpunn_bind_grad that of a gradient:
 *     nothing is copied, and buffers may take turns. A GPU that shares the host's memory (Jetson; gpunn_device_name says
 *     "shared") takes pinned memory of the host for its own, one that follows the host's page tables (Grace) any; after
 *     gpunn_synchronize the host sees what was computed. On the CPU the same with arrays of the program:
 *         static float field[4][20], derivative[4][20];
 *         gpunn_bind(x, field, sizeof field); // four samples; a gpunn_write would have told the batch too
 *         gpunn_bind_grad(x, derivative, sizeof derivative);
 *     gpunn_backward_from starts from gradients that the program gives, so that a model is a piece of a larger derivative:
 *         gpunn_tensor *rates[] = {y};
 *         static float  by_y[4][1]; // of what the program minimizes, by y
 *         const void   *by_rates[] = {by_y};
 *         gpunn_backward_from(rates, by_rates, 1);
 *     While the program captures its stream, gpunn_forward, gpunn_train_step and gpunn_backward add what they would launch to its
 *     graph, to be replayed on that stream; all three must have run before, outside. A replay counts as the same steps outside,
 *     among which it may stand: masks, random numbers and Adam's corrections are theirs. The rate stays as it was captured.
 *     gpunn_step_count and schedules leave replays out; gpunn_checkpoint_save takes them in. Where the host writes parameters of
 *     a model in 16 bits, a run outside comes before the next replay. Graphs with steps of a group are destroyed before the group
 *     is closed, which else waits for its .timeout.
 *
 * DETERMINISM  The same seed, data and build give the same bits on the same device; dropout drops the same on every one. On a GPU
 *     three things may vary in the last bits unless the device is .deterministic: recurrent layers, convolutions for which cuDNN
 *     has nothing else, and gradients of 16-bit attention: those whose scores, 2 bytes each, exceed .workspace_limit, and all of
 *     them on compute capability 10.x.
 *     On the CPU, 3 x 3 convolutions of 16 and more channels may use Winograd's algorithm: errors of about 4e-5 of the result's
 *     size, where a plain sum makes 7e-6.
 *
 * SPEED  What costs most, first. -march=native (BUILDING). Batches as large as memory allows: a small network is bound by the
 *     cost of each call, some microseconds on the CPU and more on a GPU. On a GPU: .precision = GPUNN_PRECISION_BF16, channels in
 *     multiples of 8, loaders with .workers, gpunn_item only every few steps, since it waits for the device; kernels from the
 *     generator; .benchmark = true where shapes stay the same for long. On the CPU: .threads as many as there are cores, not
 *     hyperthreads. The first run of each (outputs, mode, sizes) plans: run a dummy batch before time matters, and give the
 *     last, smaller batch of an epoch to .drop_last. tests/bench/RESULTS.md tells what to expect. Where the time goes, step by
 *     step beside what the device could do, as a table and as a trace for ui.perfetto.dev (more than 100 % comes out of caches):
 *         void (*print)(void *user, const char *text) = NULL; // a function that prints its text
 *         gpunn_profile(model, .loss = loss, .optimizer = o, .write = print, .peak_flops = 1e11, .peak_bytes = 1e10);
 *
 * COMMON MISTAKES
 *     - "x is NULL": an earlier call failed, and its error is already gone: print gpunn_error(dev) where the chain ends.
 *     - softmax before cross_entropy, sigmoid before bce_with_logits: both take logits. bce takes probabilities.
 *     - the loss falls, that of the validation does not: are its samples normalised in the same way?
 *     - every gradient is 0, or a weight never changes: gpunn_set_trainable, a relu that is dead, an input that is not scaled.
 *     - NaN after some steps: a rate that is too high; gpunn_set_clip_norm(o, 1) tells soon, gpunn_check_nan(loss) which layer.
 *     - it does not learn, without any NaN: gpunn_inspect tells mean, deviation and zeros of each layer and its gradients.
 *     - gpunn_read of a value between fails: only outputs, the loss and what gpunn_keep names are there after a run.
 *     - labels as F32: class losses take I64, I32 or U8 of shape [n], not one-hot vectors.
 *     - a field that is set to 0 seems to be ignored: 0 is the default; write GPUNN_ZERO.
 *
 * HOW IT WORKS  The trip of y = gpunn_linear(x, "fc", .out_features = 10). Names behind >> are sections of this file.
 *     Building. gpunn_linear is a macro for gpunn_linear_ (>>layers/basic). gpunn__settle applies the defaults of its row
 *     (>>graph/arguments). gpunn__layer_weight makes the parameters fc.weight and fc.bias. gpunn__node (>>graph/nodes) appends
 *     the result to the model, with the shape that gpunn__infer gives (>>graph/infer). Nothing is computed yet, and the device
 *     holds no memory.
 *     Planning. The first run of these outputs, in this mode and batch, makes a plan: a list of gpunn_step with pointers into one
 *     arena. Later runs find it (gpunn__plan_for, >>run/run). gpunn__plan_fill (>>plan/plan) makes it in these passes:
 *      1. gpunn__mark_operands: the tensors that the outputs are computed from.
 *      2. gpunn__mark_kept and gpunn__mark_assigns: tensors that the program keeps, and states that the run assigns.
 *      3. gpunn__settle_sizes: attributes and shapes that depend on the run's sizes, which must all fit.
 *      4. gpunn__find_narrow: weights of an inference model that are kept in 16 bits alone.
 *      5. gpunn__mark_storage: dtype and layout of each value.
 *      6. gpunn__mark_roots: reshapes and other aliases share their operand's memory.
 *      7. gpunn__mark_gradients: which tensors have gradients, and how many steps add to each (>>plan/backward).
 *      8. gpunn__mark_groups: nodes that a generated kernel computes together.
 *      9. gpunn__mark_order: the order of the nodes.
 *     10. gpunn__mark_chains: norm, residual and activation merged into the product or convolution before them.
 *     11. gpunn__mark_activated: gradients that the step of the activation has already multiplied.
 *     12. gpunn__mark_parts: products of one operand, as of q, k and v, joined to one.
 *     13. gpunn__forward_steps: a step for each chain.
 *     14. gpunn__backward_steps: steps in reverse order, for each loss. A gradient's first contribution overwrites, others add.
 *     15. gpunn__overlay_steps and gpunn__prepare_steps: results that may overwrite an operand, and the workspace of each step.
 *     16. gpunn__assign_offsets: a place in the arena for each value, by size, in the lowest gap while it lives.
 *     Running. gpunn__plan_bind writes addresses into the steps. The CPU runs each step by its op's function: gpunn__cpu_linear
 *     (>>cpu/gemm), called with GPUNN__FORWARD or GPUNN__BACKWARD. gpunn_cuda.cu runs gpunn__cuda_linear (>>cuda/gemm there),
 *     once to capture the whole run as a CUDA graph, which later runs replay.
 *     Learning. The backward step leaves the gradient of fc.weight beside all others, in one array. gpunn__optimizer_collect
 *     (>>train/ranks) adds an update for each range of parameters with common settings to the run; gpunn__step_adam
 *     (>>cpu/optimizers) makes it.
 *
 * EXTENDING  A formula is an op by gpunn_expr. C and CUDA functions of your own are an op by gpunn_custom (>>builders), without
 *     a change here: examples/custom_op.c. To change the library itself, edit its parts in templates/gpunn and run
 *     python3 -m generator.amalgamate. An elementwise op is one line in >>ops. An optimizer is a row in >>train with the macro of
 *     its name. A loss or metric made of other ops is a formula, a row of GPUNN__FORMULAS in >>graph/arguments with its keys, and
 *     a field of its struct in >>builders; one with a struct of its own has its prototype there too. Any other op is a line of
 *     GPUNN_OTHER_OPS in >>ops, a prototype, new fields of gpunn_attributes, the rule of its result's shape in >>graph/infer, a
 *     builder in a section of layers/, a row of its arguments in >>graph/arguments, from which specs are read and written, and
 *     one function of its name in each backend, in sections of one name. Its gradient stands in >>graph/differentiate where
 *     gpunn_grad passes through it. The generator has the op's builder in graph.py, and other formats' names for it in exchange
 *     and export_torch.py. python3 -m generator.prototypes (the prototypes of elementwise ops and losses), python3 -m
 *     generator.schema and tests/generator/make_vectors.py renew what follows from the rows.
 *
 * LIMITS  Rank 8, 64-bit sizes, 2^31-1 channels or features, 2^20 tensors in a model (30,000 where a spec tells them); F32
 *     arithmetic (16-bit storage on a GPU), in which numbers below 1.2e-38 (denormals) may count as zero; little-endian machines.
 */
