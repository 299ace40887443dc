"""``pru page``: a web page on which trained models read along as one types.

The page runs in the browser, on ONNX Runtime Web. Its JavaScript is in the folder ``page`` of the repository;
``npm run build`` there puts it, with the runtime, into ``site`` here.
"""
