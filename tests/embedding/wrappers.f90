! What the module gpunn adds to C's functions: texts, logicals, lists, optional arguments, callbacks, errors.
module callbacks
    use gpunn
    implicit none
contains
    subroutine count(user, text) bind(c)
        type(c_ptr), value :: user, text
        integer, pointer   :: number
        call c_f_pointer(user, number)
        if (index(gpunn_from_c(text), new_line('a')) > 0) number = number + 1
    end subroutine
end module

program wrappers
    use callbacks
    implicit none
    type(c_ptr)           :: dev, model, x, y, values, indices, loss, adam
    type(c_ptr)           :: parts(2)
    real(c_float)         :: norm
    real(c_double)        :: same(3, 2)
    integer(c_int32_t)    :: places(2, 2)
    real(c_float), target :: memory(3, 2)
    type(gpunn_shape)     :: shape
    type(gpunn_summary_args) :: summary
    integer, target       :: lines = 0

    dev = gpunn_device_open(gpunn_device_args(type=GPUNN_DEVICE_CPU, threads=1))
    call expect(gpunn_error(dev) == '', 'no error')
    call expect(gpunn_status_name(GPUNN_ERR_SHAPE) == 'GPUNN_ERR_SHAPE: shapes do not fit', 'a text')
    call expect(gpunn_error(c_null_ptr) == '' .and. gpunn_from_c(c_null_ptr) == '', 'no text')
    call expect(gpunn_from_c(gpunn_to_c('a text  ')) == 'a text', 'texts to and from C')
    model = gpunn_model_create(dev)
    call expect(gpunn_set_metadata(model, 'classes', 'cat dog  ') == GPUNN_OK, 'metadata')
    call expect(gpunn_get_metadata(model, 'classes') == 'cat dog', 'trailing blanks are left out')
    call expect(gpunn_set_metadata(model, 'classes') == GPUNN_OK, 'a text left out is NULL')
    call expect(gpunn_get_metadata(model, 'classes') == '', 'metadata are gone')

    x = gpunn_input(model, 'x', GPUNN_F32, gpunn_shape([GPUNN_BATCH, 3]))
    shape = gpunn_tensor_shape(x)
    call expect(all(shape%dim == [-1, 3, 0, 0, 0, 0, 0, 0]), 'a shape as result')
    shape = gpunn_shape([2_c_int64_t, 3_c_int64_t])
    call expect(all(shape%dim(:3) == [2, 3, 0]), 'a shape of long integers')
    values = gpunn_topk(x, 2, 1, .true., indices)
    call expect(c_associated(gpunn_topk(x, 1, 1, .false.)), 'a result that is left out')
    call expect(gpunn_split(x, 2_c_int64_t, 1, parts, 2) == 2, 'a list of results')
    y = gpunn_concat(parts, 1)
    memory = reshape([1.0, 3.0, 2.0, 6.0, 4.0, 5.0], [3, 2])
    call expect(gpunn_bind(x, memory) == GPUNN_OK, 'bound memory')
    call expect(gpunn_forward([values, indices, y]) == GPUNN_OK, 'a list of handles')
    call gpunn_check(gpunn_read(indices, places), dev)
    call expect(all(places == reshape([1, 2, 0, 2], [2, 2])), 'integers')
    call gpunn_check(gpunn_read(y, same), dev)
    call expect(maxval(abs(same - memory)) < 1e-9, 'doubles')

    y = gpunn_linear(x, 'fc', gpunn_linear_args(out_features=2, no_bias=.true.))
    loss = gpunn_sum(y, GPUNN_ALL, .false.)
    call expect(gpunn_backward(loss) == GPUNN_OK, 'arguments that are left out')
    call expect(gpunn_clip_grad_norm(model, 1.0, norm) == GPUNN_OK, 'norms')
    call expect(norm > 1, 'a number as result')
    call expect(gpunn_clip_grad_norm(model, 1.0) == GPUNN_OK, 'a number that is left out')
    adam = gpunn_adam(model, gpunn_adam_args(lr=0.25))
    call expect(abs(gpunn_get_lr(adam) - 0.25) < 1e-9, 'a setting')
    summary = gpunn_summary_args(write=c_funloc(count), user=c_loc(lines))
    call expect(gpunn_model_summary(model, summary) == GPUNN_OK, 'a summary')
    call expect(lines > 2, 'a callback')

    call expect(.not. c_associated(gpunn_reshape(x, gpunn_shape([7]))), 'a failure')
    call expect(gpunn_last_status(dev) == GPUNN_ERR_SHAPE, 'its status')
    call expect(index(gpunn_error(dev), 'reshape') > 0, 'its sentence')
    call gpunn_optimizer_destroy(adam)
    call gpunn_model_destroy(model)
    call gpunn_device_close(dev)
contains
    subroutine expect(is_so, what)
        logical, intent(in)      :: is_so
        character(*), intent(in) :: what
        if (.not. is_so) error stop what
    end subroutine
end program
